"""The recipe in canonical form: all that determines the bytes, as plain values; its fingerprint; and a difference in words."""

from __future__ import annotations

import functools
import hashlib
import json
import pickle
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import pyarrow as pa

from zephon.contents import column_differences, file_differences
from zephon.plugin import Operator

STREAM_VERSION = 1
"""Raised by every change that alters the bytes of a stream; each raise is a line in the CHANGELOG."""


def fingerprint(plain: Any) -> str:
    """16 hex digits of the canonical JSON of plain values."""
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def operator_recipe(operator: Operator) -> dict[str, Any]:
    """Name, version and settings of an operator. Fields with `metadata={"recipe": False}` are hints and stay out."""
    settings = {f.name: plain(getattr(operator, f.name)) for f in fields(operator) if f.metadata.get("recipe", True)}
    parts = {name: plain(value) for name, value in operator.fingerprint_parts().items()}
    return {"operator": operator.name, "version": operator.version, "settings": settings | parts}


def operator_fingerprint(operator: Operator) -> str:
    """A hash of `operator_recipe`."""
    return fingerprint(operator_recipe(operator))


def plain(value: Any) -> Any:
    """A setting as a plain value that means the same in every process and on every machine."""
    if isinstance(value, str | bool | int | float | type(None)):
        return value
    if isinstance(value, bytes):
        return {"bytes": hashlib.blake2b(value, digest_size=8).hexdigest()}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, Sequence):
        return [plain(v) for v in value]
    if isinstance(value, set | frozenset):
        return sorted((plain(v) for v in value), key=str)
    if isinstance(value, functools.partial):
        return {"partial": plain(value.func), "args": plain(value.args), "kwargs": plain(value.keywords)}
    if isinstance(value, types.FunctionType | types.MethodType | types.BuiltinFunctionType):
        return function_recipe(value)
    if isinstance(value, type):
        return _type_name(value)
    if isinstance(value, pa.DataType | pa.Schema) or type(value).__name__ == "Expression":
        return str(value)
    if is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)} | {
            "type": type(value).__qualname__.rpartition("<locals>.")[2]
        }
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        return value.item()
    return _object(value)


def _object(value: Any) -> Any:
    """An object of the user's: its type and its attributes, or a hash of its pickle; never its address."""
    if isinstance(value, types.ModuleType):
        return {"module": value.__name__}
    kind = _type_name(type(value))
    slots = [name for base in type(value).__mro__ for name in getattr(base, "__slots__", ()) if isinstance(name, str)]
    state = dict(getattr(value, "__dict__", {})) | {n: getattr(value, n) for n in slots if hasattr(value, n)}
    if state and not kind.startswith(("numpy.", "torch.", "pyarrow.", "re.", "pathlib.")):
        try:
            return {"type": kind, "state": plain(state)}
        except RecursionError:
            return {"type": kind}
    try:
        raw = pickle.dumps(value, protocol=4)
    except Exception:  # noqa: BLE001 - what can't be pickled (a lock, a file) is known by its type alone
        return {"type": kind}
    return {"type": kind, "pickle": hashlib.blake2b(raw, digest_size=8).hexdigest()}


def _type_name(kind: type) -> str:
    # a class that is defined in a function loses the function's name on its way to another process
    return f"{kind.__module__}.{kind.__qualname__.rpartition('<locals>.')[2]}"


def function_recipe(function: Callable[..., Any]) -> Any:
    """A named function by module and qualified name (plus the `version` it states); a lambda or closure by code and constants."""
    if isinstance(function, types.MethodType):
        return {"method": f"{function.__func__.__module__}.{function.__func__.__qualname__}", "of": plain(function.__self__)}
    name = f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', '?')}"
    code = getattr(function, "__code__", None)
    named = code is None or ("<lambda>" not in name and "<locals>" not in name)
    stated = getattr(function, "version", None)
    if named or stated is not None:
        return {"function": name, "version": plain(stated)}
    assert isinstance(function, types.FunctionType)
    cells = [plain(c.cell_contents) for c in (function.__closure__ or ())]
    return {
        "function": name.rsplit(".", 1)[-1],
        "code": _code_hash(function.__code__),
        "defaults": plain(function.__defaults__),
        "closure": cells,
    }


def _code_hash(code: types.CodeType) -> str:
    constants = [_code_hash(c) if isinstance(c, types.CodeType) else repr(plain(c)) for c in code.co_consts]
    digest = hashlib.blake2b(code.co_code, digest_size=8)
    digest.update(repr((constants, code.co_names, code.co_varnames)).encode("utf-8", "backslashreplace"))
    return digest.hexdigest()


def difference(saved: Any, now: Any, path: str = "") -> list[str]:
    """What differs between two recipes, in words: `operator 1 'pack_flat': max_length 2048 → 4096`."""
    if isinstance(saved, Mapping) and isinstance(now, Mapping):
        label = path
        if "operator" in saved and saved.get("operator") == now.get("operator"):
            label = f"{path} {saved['operator']!r}"
        if "name" in saved and saved.get("name") == now.get("name"):
            label = f"{path} {saved['name']!r}"
        out: list[str] = []
        for name in [*saved, *(n for n in now if n not in saved)]:
            inner = label if name == "settings" else f"{label} {name}".strip()
            if name in _DATA and isinstance(saved.get(name), Mapping) and isinstance(now.get(name), Mapping):
                out += _DATA[name](saved[name], now[name], label)
            elif name == "content" and out:
                continue  # a hash of what was just said in words
            elif name not in saved:
                out.append(f"{inner} is new: {_short(now[name])}")
            elif name not in now:
                out.append(f"{inner} is gone (was {_short(saved[name])})")
            else:
                out += difference(saved[name], now[name], inner)
        return out
    if isinstance(saved, list) and isinstance(now, list):
        out = []
        for number in range(max(len(saved), len(now))):
            one = _singular(path)
            if number >= len(saved):
                out.append(f"{one} {number} is new: {_short(now[number])}")
            elif number >= len(now):
                out.append(f"{one} {number} is gone (was {_short(saved[number])})")
            else:
                out += difference(saved[number], now[number], f"{one} {number}")
        return out
    return [] if saved == now else [f"{path} {_short(saved)} → {_short(now)}".strip()]


_DATA: dict[str, Callable[[Mapping[str, Any], Mapping[str, Any], str], list[str]]] = {
    "files": file_differences,
    "schema": column_differences,
}
"""Parts of a data set's fingerprint that have words of their own."""


def _singular(path: str) -> str:
    return path.removesuffix("s")


def _short(value: Any) -> str:
    if isinstance(value, Mapping) and ("operator" in value or "name" in value):
        return repr(value.get("operator", value.get("name")))
    text = json.dumps(value, default=str)
    return text if len(text) <= 80 else text[:77] + "…"
