"""Types of JSON values: what a value's is, which one takes two, and whether a value fits one."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from zephon.plugin import RecipeError

_SURROGATE = re.compile("[\ud800-\udfff]")
_INT64_MAX, _INT64_MIN, _UINT64_MAX = 2**63 - 1, -(2**63), 2**64 - 1


class Misfit(Exception):  # noqa: N818 - caught where the row is known, never seen outside
    """A value does not fit a type."""


class Number(str):
    """A number as it was written, so that nothing is lost before its type is known."""

    __slots__ = ("whole",)
    whole: bool

    @classmethod
    def of_int(cls, text: str) -> Number:
        """An integer's text."""
        made = cls(text)
        made.whole = True
        return made

    @classmethod
    def of_float(cls, text: str) -> Number:
        """The text of a number with a point or an exponent."""
        made = cls(text)
        made.whole = False
        return made


# ------------------------------------------------------------------------------------------------------------ inference


def infer(value: Any) -> pa.DataType | None:
    """The type of a value from `json.loads` (numbers as `Number`); None: a list in it has values of no common type.

    Integers are int64, uint64 beyond it, double beyond that.
    """
    if value is None:
        return pa.null()
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, Number):
        return _number_type(int(value)) if value.whole and len(value) < 40 else pa.float64()
    if isinstance(value, str):
        return pa.string()
    if isinstance(value, int):
        return _number_type(value)
    if isinstance(value, float):
        return pa.float64()
    if isinstance(value, list):
        kind: pa.DataType = pa.null()
        for item in value:
            merged = unify(kind, infer(item))
            if merged is None:
                return None
            kind = merged
        return pa.list_(kind)
    fields = {name: infer(item) for name, item in value.items()}
    if any(kind is None for kind in fields.values()):
        return None
    return pa.struct([pa.field(name, kind) for name, kind in fields.items()])


def _number_type(value: int) -> pa.DataType:
    if _INT64_MIN <= value <= _INT64_MAX:
        return pa.int64()
    return pa.uint64() if 0 <= value <= _UINT64_MAX else pa.float64()


def unify(one: pa.DataType | None, other: pa.DataType | None) -> pa.DataType | None:
    """The type that takes the values of both, or None."""
    if one is None or other is None:
        return None
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if _is_number(one) and _is_number(other):
        return pa.float64() if pa.types.is_floating(one) or pa.types.is_floating(other) else pa.uint64()
    if pa.types.is_list(one) and pa.types.is_list(other):
        kind = unify(one.value_type, other.value_type)
        return None if kind is None else pa.list_(kind)
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        fields = {f.name: f.type for f in one}
        for f in other:
            kind = unify(fields.get(f.name, pa.null()), f.type)
            if kind is None:
                return None
            fields[f.name] = kind
        return pa.struct([pa.field(name, kind) for name, kind in fields.items()])
    return None


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def plain(kind: pa.DataType) -> pa.DataType:
    """A type that Arrow inferred, with the times that it saw in strings turned back into strings."""
    if pa.types.is_temporal(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(plain(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, plain(f.type)) for f in kind])
    return kind


def has_null(kind: pa.DataType) -> bool:
    """Whether a part of the type is unknown, since only nulls or empty lists were seen there."""
    if pa.types.is_null(kind):
        return True
    return any(has_null(kind.field(i).type) for i in range(kind.num_fields))


# -------------------------------------------------------------------------------------------------------------- fitting


def fit(value: Any, kind: pa.DataType, *, as_text: bool, replace: bool) -> Any:
    """The value as `pyarrow.array` takes it for this type.

    Args:
        value: from `json.loads`, numbers as `Number`.
        kind: its column's type, or a part of that.
        as_text: a string type takes any value, as its JSON text.
        replace: lone surrogates and NUL bytes become U+FFFD; else they are a misfit.

    Raises:
        Misfit: it does not fit; the message says what the value is.
    """
    if value is None:
        return None
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _fit_text(value, kind, as_text=as_text, replace=replace)
    if pa.types.is_boolean(kind) and isinstance(value, bool):
        return value
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return _fit_number(value, kind)
    if (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)) and isinstance(
        value, list
    ):
        return [fit(item, kind.value_type, as_text=as_text, replace=replace) for item in value]
    if pa.types.is_struct(kind) and isinstance(value, dict):
        return {f.name: fit(value.get(f.name), f.type, as_text=as_text, replace=replace) for f in kind}
    if pa.types.is_map(kind) and isinstance(value, dict):
        return [(clean(k), fit(v, kind.item_type, as_text=as_text, replace=replace)) for k, v in value.items()]
    if (pa.types.is_temporal(kind) or pa.types.is_decimal(kind)) and isinstance(value, str):
        return str(value)
    raise _misfit(value, kind)


def _fit_text(value: Any, kind: pa.DataType, *, as_text: bool, replace: bool) -> Any:
    if isinstance(value, str) and not isinstance(value, Number):
        if not replace and _SURROGATE.search(value):
            raise Misfit("its text has a lone surrogate or bytes that are not UTF-8 (bad_text='replace' puts U+FFFD there)")
        text = clean(value)
    elif as_text:
        text = clean(text_of(value))
    else:
        raise _misfit(value, kind)
    return text.encode() if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) else text


def _fit_number(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, bool) or not isinstance(value, Number | int | float):
        raise _misfit(value, kind)
    if pa.types.is_floating(kind):
        number = float(value)
        if math.isinf(number) and isinstance(value, Number):
            raise _misfit(value, kind)
        return number
    if isinstance(value, float) or (isinstance(value, Number) and (not value.whole or len(value) > 40)):
        raise _misfit(value, kind)
    whole = int(value)
    signed = pa.types.is_signed_integer(kind)
    low, high = (-(1 << (kind.bit_width - 1)), (1 << (kind.bit_width - 1)) - 1) if signed else (0, (1 << kind.bit_width) - 1)
    if not low <= whole <= high:
        raise _misfit(value, kind)
    return whole


def _misfit(value: Any, kind: pa.DataType) -> Misfit:
    shown = text_of(value)
    return Misfit(f"the value {shown[:60]}{'…' if len(shown) > 60 else ''} does not fit the type {kind}")


def clean(text: str) -> str:
    """The text with lone surrogates replaced by U+FFFD, so that it is valid UTF-8."""
    return _SURROGATE.sub("\ufffd", text)


def text_of(value: Any) -> str:
    """A value's JSON text, compact, numbers as they were written."""
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, list):
        return "[" + ",".join(map(text_of, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k, ensure_ascii=False)}:{text_of(v)}" for k, v in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)


# --------------------------------------------------------------------------------------------------------- declarations


def declared_types(schema: Mapping[str, Any]) -> dict[str, pa.DataType | None]:
    """The user's types by column; None for "json".

    Raises:
        RecipeError: a name that is no type, with an example of one.
    """
    types: dict[str, pa.DataType | None] = {}
    for name, given in schema.items():
        if not isinstance(name, str):
            raise RecipeError(f"schema: a column's name must be a string, got {name!r}")
        if given == "json":
            types[name] = None
        elif isinstance(given, pa.DataType):
            types[name] = given
        elif isinstance(given, str):
            types[name] = _parse_type(given.strip(), name)
        else:
            raise RecipeError(f"schema: the type of {name!r} must be a string such as 'int64', got {given!r}")
    return types


def _parse_type(text: str, name: str) -> pa.DataType:
    outer, _, inner = text.partition("<")
    if inner.endswith(">"):
        parts = _split(inner[:-1])
        if outer == "list" and len(parts) == 1:
            return pa.list_(_parse_type(parts[0].removeprefix("item:").strip(), name))
        if outer == "map" and len(parts) == 2:
            return pa.map_(_parse_type(parts[0], name), _parse_type(parts[1], name))
        if outer == "struct":
            named = [part.partition(":") for part in parts]
            return pa.struct([pa.field(key.strip(), _parse_type(kind.strip(), name)) for key, _, kind in named])
    try:
        return pa.type_for_alias(text)  # type: ignore[call-overload, no-any-return]
    except ValueError:
        raise RecipeError(
            f"schema: {text!r} (column {name!r}) is not a type",
            hint="for example 'string', 'int64', 'double', 'bool', 'timestamp[s]', 'list<string>', 'struct<a: int64, b: string>', 'json'",
        ) from None


def _split(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for index, character in enumerate(text):
        depth += (character in "<[") - (character in ">]")
        if character == "," and not depth:
            parts.append(text[start:index].strip())
            start = index + 1
    return [*parts, text[start:].strip()]
