"""Which layout a schema is of, and which of its columns hold images."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from zephon import groups
from zephon.errors import RecipeError, unknown
from zephon_vision.layouts.base import Kind, Layout, check_images, kind_of, kind_of_value
from zephon_vision.layouts.caption import Caption
from zephon_vision.layouts.finevision import FineVision
from zephon_vision.layouts.llava import Llava
from zephon_vision.layouts.messages import Messages
from zephon_vision.layouts.mmc4 import Mmc4
from zephon_vision.layouts.obelics import Obelics

LAYOUTS: dict[str, Layout] = {
    layout.name: layout for layout in (Messages(), Llava(), FineVision(), Obelics(), Mmc4(), Caption())
}
"""In the order in which they are tried."""

JSON_COLUMNS = ("json", "metadata")
_USUAL = ("images", "image")
_SUFFIXES = ("jpg", "jpeg", "png", "webp", "gif", "avif", "bmp", "tif", "tiff", "img")
IMAGE_NAMES = (*_USUAL, *_SUFFIXES)
"""What columns of images are called (WebDataset's members may have more before the suffix)."""
_FILE_NAME = re.compile(rf"(.*\.)?({'|'.join(_SUFFIXES)})", re.IGNORECASE)
_DIGITS = re.compile(r"(\d+)")


@dataclass(frozen=True)
class Choice:
    """What a schema comes down to."""

    layout: Layout | None
    """None: rows are JSON, and each is looked at by itself."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """`{field: column}` as the layout claims them."""
    images: tuple[str, ...] | None = None
    """The columns with images, in order; None: there are none."""
    json: str | None = None
    """The column with JSON, where the layout isn't in the schema itself."""

    def columns(self) -> tuple[str, ...]:
        """All columns that are read."""
        return tuple(dict.fromkeys((*self.fields.values(), *(self.images or ()), *((self.json,) if self.json else ()))))


def choose(schema: pa.Schema, layout: str, *, image: Sequence[str] | None = None, text: str | None = None) -> Choice:
    """The layout of a schema.

    Args:
        schema: of the group.
        layout: its name, or "auto".
        image, text: the columns, where the user names them.

    Raises:
        RecipeError: no layout fits, or the one that is asked for doesn't, with what was found; a column holds no images.
    """
    found = find(schema, layout, image=image, text=text)
    if found is None:
        raise _nothing(layout, [f for f in schema if not groups.is_internal(f.name)])
    return found


def find(schema: pa.Schema, layout: str, *, image: Sequence[str] | None, text: str | None) -> Choice | None:
    """The same, None where no layout fits."""
    fields = [f for f in schema if not groups.is_internal(f.name)]
    kinds: dict[str, Kind] = {f.name: kind_of(f.type) for f in fields}
    for name in (*(image or ()), *((text,) if text else ())):
        if name not in kinds:
            raise RecipeError(f"interleave: {unknown('column', name, kinds)}")
    images = tuple(image) if image else image_columns(kinds)
    for name in images or ():
        check_images(schema.field(name).type, name)
    for candidate in LAYOUTS.values() if layout == "auto" else [_named(layout)]:
        claimed = _claim(candidate, kinds, text, images)
        if claimed is None or (layout == "auto" and isinstance(candidate, Caption) and not images and _hides_images(kinds)):
            continue
        return Choice(candidate, claimed, images)
    for name in JSON_COLUMNS:
        if kinds.get(name) in ("text", "binary"):
            others = tuple(n for n in images or () if n != name) or None
            return Choice(None if layout == "auto" else _named(layout), {}, others, json=name)
    return None


def choose_for_json(value: Mapping[str, Any], layout: Layout | None, columns: Choice) -> Choice:
    """The same for one row of JSON, whose values are its columns. Raises `RecipeError` where nothing fits."""
    kinds: dict[str, Kind] = {name: kind_of_value(v) for name, v in value.items()}
    own = columns.images or image_columns(kinds, paths=True)
    for candidate in [layout] if layout is not None else LAYOUTS.values():
        claimed = _claim(candidate, kinds, None, own)
        if claimed is not None:
            return Choice(candidate, claimed, own)
    raise RecipeError(
        f"the row's JSON is of no known layout; it has {', '.join(f'{n} ({k})' for n, k in kinds.items()) or 'nothing'}"
    )


def _claim(
    candidate: Layout, kinds: Mapping[str, Kind], text: str | None, images: Sequence[str] | None
) -> dict[str, str] | None:
    if text is not None:  # whatever it is called, it is the column that the layout reads its text from
        usual = {
            "messages": "messages",
            "llava": "conversations",
            "finevision": "texts",
            "obelics": "texts",
            "mmc4": "text_list",
        }
        renamed = usual.get(candidate.name, "text")
        seen = {n: k for n, k in kinds.items() if n not in (renamed, *(images or ()))} | {renamed: kinds[text]}
        if candidate.name == "obelics" and images:
            seen["images"] = kinds[images[0]]
        claimed = candidate.claims(seen)
        if claimed is None or renamed not in claimed.values():
            return None
        claimed = {name: text if column == renamed else column for name, column in claimed.items()}
    else:
        seen = dict(kinds)
        if candidate.name == "obelics" and images and "images" not in seen:
            seen["images"] = kinds.get(images[0], "null")
        found = candidate.claims(seen)
        if found is None:
            return None
        claimed = found
    if images and "mask" in claimed:
        claimed["mask"] = images[0]
    return claimed


def image_columns(kinds: Mapping[str, Kind], *, paths: bool = False) -> tuple[str, ...] | None:
    """The columns that hold images: `images` or `image`; else WebDataset's members by their suffix; else those of the image type."""
    for name in _USUAL:
        if name in kinds and (not paths or kinds[name] not in ("null", "other")):
            return (name,)
    files = [n for n, k in kinds.items() if _FILE_NAME.fullmatch(n) and k in ("binary", "image", "images", "text")]
    if files:
        return tuple(sorted(files, key=_natural))
    typed = [n for n, k in kinds.items() if k in ("image", "images")]
    return tuple(sorted(typed, key=_natural)) or None


def _natural(name: str) -> list[Any]:
    return [(1, int(part)) if part.isdigit() else (0, part) for part in _DIGITS.split(name)]


def _hides_images(kinds: Mapping[str, Kind]) -> bool:
    return any(kind in ("binary", "turns", "talk", "pairs") for name, kind in kinds.items() if name not in ("txt", "text"))


def _named(layout: str) -> Layout:
    if layout not in LAYOUTS:
        raise RecipeError(f"interleave: {unknown('layout', layout, ('auto', *LAYOUTS))}")
    return LAYOUTS[layout]


def _nothing(layout: str, fields: Iterable[Any]) -> RecipeError:
    found = ", ".join(f"{f.name}: {f.type}" for f in fields) or "no columns"
    what = "no known layout" if layout == "auto" else f"not of the layout {layout!r}"
    return RecipeError(
        f"interleave: the data is of {what}; it has {found}"
        if layout == "auto"
        else f"interleave: the data is {what}; it has {found}",
        hint=f"name the layout ({', '.join(LAYOUTS)}), or the columns with image_column= and text_column=",
    )
