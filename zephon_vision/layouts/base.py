"""What a layout is: it finds its columns in a schema, and writes each row as one document of ordered segments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pyarrow as pa

from zephon.errors import DataError, RecipeError
from zephon_vision.layouts._build import Builder
from zephon_vision.layouts._images import PLACES, short

Kind = Literal["text", "binary", "image", "images", "texts", "turns", "talk", "pairs", "structs", "null", "other"]
"""What a column may be, by its type alone:

* text, texts: strings, lists of strings; binary: bytes; null: nothing known
* image, images: a struct with `bytes` or `path`, and lists of it (or of bytes)
* turns: a list of structs with `role` and `content`; talk: with `from` and `value`; pairs: with `user` and `assistant`
* structs: a list of other structs
"""


@dataclass(frozen=True)
class Row:
    """One row, as a layout sees it."""

    fields: Mapping[str, Any]
    """Its values by the names that `claims` gave."""
    images: Sequence[int] | None
    """The numbers of its images in the builder, in order; None: the data has no column of images."""


class Layout(ABC):
    """One way to keep documents with images. Layouts have no state."""

    name: ClassVar[str]

    @abstractmethod
    def claims(self, kinds: Mapping[str, Kind]) -> dict[str, str] | None:
        """`{field: column}` for the columns that this layout reads beside its images; None: the schema isn't of this layout."""

    @abstractmethod
    def write(self, row: Row, out: Builder) -> None:
        """Write the row's segments. Raises `DataError` where the row makes no sense."""


def kind_of(kind: Any) -> Kind:
    """What an Arrow type may be."""
    t = pa.types
    if t.is_dictionary(kind):
        kind = kind.value_type
    if t.is_null(kind):
        return "null"
    if t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind):
        return "text"
    if t.is_binary(kind) or t.is_large_binary(kind) or t.is_binary_view(kind):
        return "binary"
    if t.is_struct(kind):
        return "image" if _struct_is_image({f.name for f in kind}) else "other"
    if is_list(kind):
        inner = kind.value_type
        if t.is_struct(inner):
            return _list_of_structs({f.name for f in inner})
        return _LISTS.get(kind_of(inner), "other")
    return "other"


def kind_of_value(value: Any) -> Kind:
    """What a value out of JSON may be."""
    if value is None:
        return "null"
    if isinstance(value, str):
        return "text"
    if isinstance(value, bytes):
        return "binary"
    if isinstance(value, dict):
        return "image" if _struct_is_image(set(value)) else "other"
    if isinstance(value, list):
        known = [v for v in value if v is not None]
        if not known:
            return "null"
        if all(isinstance(v, dict) for v in known):
            return _list_of_structs(set().union(*known))
        return _LISTS.get(kind_of_value(known[0]), "other")
    return "other"


def is_list(kind: Any) -> bool:
    """Whether an Arrow type is a list of any sort."""
    t = pa.types
    return bool(
        t.is_list(kind)
        or t.is_large_list(kind)
        or t.is_fixed_size_list(kind)
        or t.is_list_view(kind)
        or t.is_large_list_view(kind)
    )


def check_images(kind: Any, column: str) -> None:
    """Raise `RecipeError` where a column of this type holds no images: one per row, or lists of them, nested or not."""
    if not _holds_images(kind):
        raise RecipeError(
            f"column {column!r} is {kind}, not images",
            hint="images are struct<bytes, path>, binary (the file) or string (its path), or lists of these; name them with image_column=",
        )


def _holds_images(kind: Any) -> bool:
    t = pa.types
    if t.is_dictionary(kind) or t.is_run_end_encoded(kind) or is_list(kind):
        return _holds_images(kind.value_type)
    if not t.is_struct(kind):
        return kind_of(kind) in ("text", "binary", "null")
    parts = {field.name: kind_of(field.type) for field in kind}
    place = next((name for name in PLACES if name in parts), None)
    data = parts.get("bytes", "null") in ("binary", "text", "null")
    return data and ("bytes" in parts if place is None else parts[place] in ("text", "null"))


_LISTS: dict[str, Kind] = {"text": "texts", "binary": "images", "image": "images", "images": "images", "null": "null"}


def _struct_is_image(names: set[str]) -> bool:
    return bool(names & {"bytes", "path", "base64"})


def _list_of_structs(names: set[str]) -> Kind:
    if {"role", "content"} <= names:
        return "turns"
    if {"from", "value"} <= names:
        return "talk"
    if {"user", "assistant"} <= names:
        return "pairs"
    return "images" if _struct_is_image(names) else "structs"


def texts_of(value: Any, what: str) -> list[str | None]:
    """A list of strings and nulls. Raises `DataError` for anything else."""
    if not isinstance(value, list) or not all(v is None or isinstance(v, str) for v in value):
        raise DataError(f"{what} is no list of texts: {short(value)}")
    return value


def text_of(value: Any, what: str) -> str:
    """A string; bytes are decoded. Raises `DataError` for anything else."""
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{what} is not UTF-8: {error}") from error
    if not isinstance(value, str):
        raise DataError(f"{what} is no text: {short(value)}")
    return value
