"""`interleave`: documents with images, however a data set keeps them, to one canonical form."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any, ClassVar, Literal, get_args

import pyarrow as pa

from zephon import groups
from zephon.arrays import list_sizes
from zephon.errors import DataError, RecipeError, ZephonError, unknown
from zephon.plugin import Operator, place_of
from zephon_vision import columns
from zephon_vision.layouts._build import Builder, Rules
from zephon_vision.layouts._images import Flat, ImageRules, no_images, read_columns
from zephon_vision.layouts.base import Row
from zephon_vision.layouts.choose import IMAGE_NAMES, LAYOUTS, Choice, choose, choose_for_json, find

Train = Literal["assistant", "all"]


@dataclass(frozen=True, kw_only=True)
class Interleave(Operator):
    """Bring rows of any known layout into one form: the columns `segments` and `images` (see `zephon_vision.columns`).

    Images stay what they are, file bytes or paths; nothing is decoded and nothing is fetched. A row that makes no sense (say, more
    `<image>` than images) is a `DataError` that names it; what becomes of it is up to the pipeline's `on_error`.
    """

    name: ClassVar[str] = "interleave"
    keeps_rows: ClassVar[bool] = True

    layout: str = "auto"
    """`messages`, `llava`, `finevision`, `obelics`, `mmc4`, `caption`; `auto`: by the names and types of the columns, once, not by
    what is in them. A column `json` or `metadata` of JSON text is looked into, row by row, if no layout fits the columns."""
    image_column: str | tuple[str, ...] | None = None
    """Where the images are; None: `images`, `image`, `jpg`, `png`, .., or whatever has the image type."""
    text_column: str | None = None
    """Where the text (the chat, the caption) is; None: by the layout's own names."""
    media_root: str | None = field(default=None, metadata={"recipe": False})
    """The folder that paths are under; none may lead out of it. They become relative to it, and the operators that read files take the
    folder from here."""
    train: Train = "assistant"
    """Which text is marked for training: what the assistant says, and all text of documents without roles; or all text."""
    placeholder: str | None = "<image>"
    """What stands for an image in the texts of chats with an image column; None: nothing does."""
    allow_network: bool = False
    """Keep images that are URLs, as paths. They are not fetched: an operator that does has to follow. Else they are an error."""
    keep: tuple[str, ...] = ()
    """Other columns to carry along."""

    def __post_init__(self) -> None:
        if self.layout not in ("auto", *LAYOUTS):
            raise RecipeError(f"interleave: {unknown('layout', str(self.layout), ('auto', *LAYOUTS))}")
        if self.train not in get_args(Train):
            raise RecipeError(f"interleave: {unknown('train', str(self.train), get_args(Train))}")
        if self.placeholder == "":
            raise RecipeError("interleave: placeholder is empty", hint="placeholder=None takes all text as text")
        images = self.image_column
        if images is not None:
            object.__setattr__(self, "image_column", (images,) if isinstance(images, str) else tuple(images))
        object.__setattr__(self, "keep", (self.keep,) if isinstance(self.keep, str) else tuple(self.keep))
        for name in self.keep:
            if name in (columns.SEGMENTS, columns.IMAGES):
                raise RecipeError(f"interleave: the column {name!r} can't be kept, interleave makes one of that name")

    def passes(self) -> bool:
        """Only what `keep` names."""
        return False

    def viewed_inputs(self) -> tuple[str, ...]:
        """The images, by the names that they may have."""
        names = IMAGE_NAMES if self.image_column is None else self.image_column
        return tuple(name for name in names if name not in self.keep)

    def viewed_outputs(self) -> tuple[str, ...]:
        """The images."""
        return (columns.IMAGES,)

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        """The two columns, what is kept, and the provenance."""
        self.choice(schema)
        for name in self.keep:
            if schema.get_field_index(name) < 0:
                raise RecipeError(f"interleave: {unknown('column', name, groups.user_columns(schema))}")
        return pa.schema(
            [
                pa.field(columns.SEGMENTS, columns.SEGMENTS_TYPE),
                pa.field(columns.IMAGES, columns.IMAGES_TYPE),
                *(schema.field(name) for name in self.keep),
                *(f for f in schema if f.name in groups.PROVENANCE),
            ]
        )

    def choice(self, schema: pa.Schema) -> Choice:
        """The layout and columns that this schema comes down to. Raises `RecipeError` where nothing fits."""
        names: Any = self.image_column
        return choose(schema, self.layout, image=names, text=self.text_column)

    def choices(self, schema: pa.Schema) -> tuple[Choice, ...]:
        """`choice`, and those for rows where its columns are null: a mixture of data sets has the columns of all of them."""
        found = [self.choice(schema)]
        while self.layout == "auto" and self.text_column is None and found[-1].layout is not None:
            used = set(found[-1].fields.values()) - set(found[-1].images or ())
            schema = pa.schema([f for f in schema if f.name not in used])
            try:
                further = self.choice(schema)
            except RecipeError:
                break
            if further.images != found[0].images:
                break
            found.append(further)
        return tuple(found)

    def bind(self) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        """The loop over rows: documents are few and heavy."""
        return _Bound(self)


class _Bound:
    def __init__(self, settings: Interleave) -> None:
        self._settings = settings
        self._choices = lru_cache(maxsize=64)(self._chosen)
        images = ImageRules(settings.media_root, settings.allow_network)
        self._rules = Rules(settings.train, settings.placeholder, images)

    def __call__(self, group: pa.RecordBatch) -> pa.RecordBatch:
        """A group of canonical documents."""
        choices = self._choices(group.schema)
        choice = choices[0]
        flat = no_images(group.num_rows)
        if choice.images is not None:
            flat = self._images(group, choice.images)
        out = Builder(self._rules, flat)
        rows = [_rows(group, choice) for choice in choices]
        bounds = flat.offsets.tolist()
        for number in range(group.num_rows):
            images = None if choice.images is None else range(bounds[number], bounds[number + 1])
            try:
                which = next((i for i, fields in enumerate(rows) if _is_there(fields, number)), 0)
                fields = {name: values[number] for name, values in rows[which].items()}
                self._write(fields, images, choices[which], out)
            except ZephonError as error:
                error.where = error.where.within(place_of(group, number))
                if isinstance(error, RecipeError):  # the JSON of one row
                    raise DataError(error.message, where=error.where, hint=error.hint) from error
                raise
            out.end_row()
        segments, pictures = out.finish()
        made = pa.RecordBatch.from_arrays(
            [segments, pictures, *(groups.column(group, name) for name in self._settings.keep)],
            names=[columns.SEGMENTS, columns.IMAGES, *self._settings.keep],
        )
        return groups.carry_provenance(group, made)

    def _chosen(self, schema: pa.Schema) -> tuple[Choice, ...]:
        settings: Any = self._settings
        try:
            return settings.choices(schema)  # type: ignore[no-any-return]
        except RecipeError as error:
            found = find(schema, settings.layout, image=settings.image_column, text=settings.text_column)
            if found is None and any(pa.types.is_null(f.type) for f in schema):
                # these records have nothing in a column of which others may have something
                raise DataError(error.message, hint=error.hint) from error
            raise

    def _images(self, group: pa.RecordBatch, names: tuple[str, ...]) -> Flat:
        try:
            return read_columns([groups.column(group, name) for name in names], self._rules.images)
        except ZephonError as error:
            if len(group) > 1:  # which row is it?
                for number in range(len(group)):
                    self._images(group.slice(number, 1), names)
            error.where = error.where.within(place_of(group, 0)) if len(group) == 1 else error.where
            raise

    def _write(self, fields: Mapping[str, Any], images: range | None, choice: Choice, out: Builder) -> None:
        if choice.json is None:
            assert choice.layout is not None
            choice.layout.write(Row(fields, images), out)
            return
        value = _json(fields[choice.json], choice.json)
        own = choose_for_json(value, choice.layout, choice)
        numbers: list[int] | range | None = images
        if choice.images is None and own.images is not None:
            numbers = [out.inline(v) for name in own.images for v in _each(value.get(name))]
        fields = {name: value.get(column) for name, column in own.fields.items()}
        if "mask" in fields:
            fields["mask"] = [v is not None for v in value.get(own.fields["mask"]) or []]
        assert own.layout is not None
        own.layout.write(Row(fields, numbers), out)


def _rows(group: pa.RecordBatch, choice: Choice) -> dict[str, list[Any]]:
    """The fields that the layout reads, as Python values; of images only whether they are there."""
    made: dict[str, list[Any]] = {}
    for name, column in choice.fields.items():
        array = groups.column(group, column)
        made[name] = _presence(array) if name == "mask" else _values(array, column)
    if choice.json is not None:
        made[choice.json] = _values(groups.column(group, choice.json), choice.json)
    return made


def _is_there(fields: Mapping[str, list[Any]], row: int) -> bool:
    return any(values[row] is not None for name, values in fields.items() if name not in ("mask", "system"))


def _values(array: Any, name: str) -> list[Any]:
    try:
        values: list[Any] = array.to_pylist()
    except UnicodeDecodeError as error:
        raise DataError(f"column {name!r} holds text that is not UTF-8: {error}") from error
    return values


def _presence(array: Any) -> list[list[bool] | None]:
    """For a list column: which elements are not null."""
    if pa.types.is_null(array.type):
        return [None] * len(array)
    ends = [0, *list_sizes(array).cumsum().tolist()]
    there = array.flatten().is_valid().to_pylist()
    return [there[a:b] for a, b in pairwise(ends)]


def _json(value: Any, name: str) -> Mapping[str, Any]:
    if value is None:
        raise DataError(f"the JSON in column {name!r} is null")
    try:
        made = json.loads(value)
    except ValueError as error:
        raise DataError(f"the JSON in column {name!r} is broken: {error}") from error
    if not isinstance(made, dict):
        raise DataError(f"the JSON in column {name!r} is no object")
    return made


def _each(value: Any) -> list[Any]:
    """One image, several, or lists of them."""
    if value is None:
        return []
    if not isinstance(value, list):
        return [value]
    return [v for item in value for v in (_each(item) if isinstance(item, list) else [item])]
