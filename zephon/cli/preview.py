"""`zephon preview`: the first batches of a pipeline as a person would want to see them: documents, trained text, images, drops.

This module makes the picture (`Preview`: plain values); `preview_text` shows it in a terminal, `preview_html` as a page.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from zephon import groups
from zephon.batch import Batch
from zephon.cli.preview_tokens import Decoder, Run
from zephon.dataset import Dataset
from zephon.errors import RecipeError, writing
from zephon.pipeline import Pipeline
from zephon.plan.source import StaticMixtureWorkSource

# columns of vision operators; the core finds them by name, as it does with anybody's operators
IMAGES, INFO, PLANS, SPANS, PIXELS, ALIGNMENT = (
    "images", "image_info", "image_plans", "image_spans", "pixel_values", "document_alignment",
)  # fmt: skip

_OBJECT = re.compile(r"(?P<module>.+\.py|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):(?P<name>[A-Za-z_]\w*)")
_IMAGE_COLUMNS = {"images", "image", "jpg", "jpeg", "png", "webp", "image_info"}
_CHAT_COLUMNS = {"messages", "conversations", "texts", "text_list"}
_POLICY = 'qwen2_5_vl{"max_pixels": 1003520}'
"""1,280 tokens per image at most, so that a sequence shows several."""
_MOST_TEXT = 2_000
"""Characters of a column that is shown as it is."""


@dataclass(frozen=True)
class Shown:
    """An image of a document."""

    data: bytes | None
    """The file's bytes; None: they are not at hand."""
    path: str | None
    height: int
    width: int
    grid: tuple[int, ...]
    tokens: int
    """Positions that it takes in the sequence, wrappers included."""
    blocks: int
    """Patches or tiles."""
    blank: bool = False
    """It could not be decoded, and is grey."""

    @property
    def caption(self) -> str:
        """Size, grid and what it costs."""
        size = f"{self.width}×{self.height}" if self.height else "size unknown"
        grid = f" → grid {'×'.join(map(str, self.grid))}" if self.grid else ""
        blank = "BLANK: can't be decoded; " if self.blank else ""
        return f"{blank}{size}{grid}, {self.tokens:,} tokens, {self.blocks:,} blocks"


@dataclass(frozen=True)
class Part:
    """A piece of a document: text with one way of training, or an image."""

    kind: Literal["text", "special", "image"]
    text: str = ""
    trained: bool = False
    tokens: int = 0
    image: Shown | None = None


@dataclass(frozen=True)
class Document:
    """One document of a sequence."""

    number: int
    source: str
    """Data set, file and row."""
    tokens: int
    trained: int
    parts: Sequence[Part]


@dataclass(frozen=True)
class Packed:
    """One row of a batch."""

    lane: int
    step: int
    row: int
    length: int
    """Tokens, padding included; 0 where there are no tokens."""
    padding: int
    empty: bool
    documents: Sequence[Document]

    @property
    def title(self) -> str:
        """Where it stands in the run."""
        return f"step {self.step}, lane {self.lane}, row {self.row}"

    @property
    def images(self) -> int:
        """How many images its documents have."""
        return sum(part.kind == "image" for document in self.documents for part in document.parts)

    @property
    def summary(self) -> str:
        """What is in it, in words."""
        if self.empty:
            return "an empty sequence: this lane has ended"
        told = [_count(len(self.documents), "document")]
        if self.images:
            told.append(_count(self.images, "image"))
        if self.length:
            trained = sum(document.trained for document in self.documents)
            full = (self.length - self.padding) / self.length
            told.append(f"{self.length:,} tokens, {trained:,} of them trained, {self.padding:,} padding ({full:.1%} full)")
        return ", ".join(told)


@dataclass(frozen=True)
class Preview:
    """What is shown."""

    title: str
    steps: str
    """The data sets and the names of the operators."""
    plan: str
    """The pipeline in words."""
    sequences: Sequence[Packed]
    accounting: Mapping[str, Any]
    drops: Sequence[tuple[str, int, int]] = field(default=())
    """`(reason, rows, tokens)`."""
    lost: Sequence[tuple[str, str, int]] = field(default=())
    """`(kind, reason, how many)` of what rows that stayed have lost, such as images."""


def run_preview(target: str, settings: Mapping[str, Any], *, batches: int, characters: int, html: str | None) -> int:
    """The command: 0. Raises what making and running the pipeline raises."""
    made = preview(load_pipeline(target, settings), batches=batches, title=target)
    if html is not None:
        from zephon.cli.preview_html import write_html

        with writing(html, RecipeError):
            Path(html).parent.mkdir(parents=True, exist_ok=True)
            write_html(made, Path(html))
        print(f"{html}: {len(made.sequences)} sequences, {Path(html).stat().st_size / 1e6:.1f} MB")
        return 0
    from zephon.cli.preview_text import show

    show(made, characters=characters)
    return 0


# ------------------------------------------------------------------------------------------------------- the pipeline


def load_pipeline(target: str, settings: Mapping[str, Any]) -> Pipeline:
    """The pipeline that `target` means: `file.py:name`, `module:name` (a pipeline, or a function that makes one), or data.

    Raises:
        RecipeError: there is no such object, it is no pipeline, or data without a tokenizer.
    """
    found = _OBJECT.fullmatch(target)
    if found is None or (not found["module"].endswith(".py") and not _is_module(found["module"])):
        return default_pipeline(target, settings)
    value = getattr(_load_module(found["module"]), found["name"], None)
    made = value() if callable(value) and not isinstance(value, Pipeline) else value
    if not isinstance(made, Pipeline):
        what = "there is nothing of that name" if value is None else f"it is of type {type(made).__name__}"
        raise RecipeError(f"{target!r} is no pipeline: {what}", hint="name a Pipeline, or a function that returns one")
    return made


def default_pipeline(uri: str, settings: Mapping[str, Any]) -> Pipeline:
    """A plain pipeline over a data set, once through: of images and chats by their layout, else of text.

    Args:
        settings: `tokenizer`, `images` (the image policy), `field` (the text column), `max_length`, `media_root` (the folder that image
            paths are under; None: the data's own); None: by default.
    """
    if settings.get("tokenizer") is None:
        raise RecipeError("a preview of data needs a tokenizer", hint="give --tokenizer PATH, or preview FILE.py:pipeline")
    dataset = Dataset.from_path("data", uri)
    names = set(dataset.schema.names)
    field_name = settings.get("field")
    vision = settings.get("images") is not None or (field_name is None and bool(names & (_IMAGE_COLUMNS | _CHAT_COLUMNS)))
    source = StaticMixtureWorkSource([dataset], stop_after_passes=1, chunk_size=32, seed=0)
    length = settings.get("max_length") or (4096 if vision else 1024)
    pipeline = Pipeline(source).options(lanes=1, on_error="skip", runner="inline")
    if not vision:
        tokenized = pipeline.tokenize(tokenizer_id=settings["tokenizer"], field=field_name or "text")
        return _padded(tokenized, "pack_flat", max_length=length, algorithm="best_fit_wrap").batch(1)
    root = settings.get("media_root")
    if root is None and "://" not in uri:
        root = str(Path(uri).resolve() if Path(uri).is_dir() else Path(uri).resolve().parent)
    elif root is not None and not Path(root).is_dir():
        raise RecipeError(f"there is no folder {root!r}", hint="--media-root is the folder that the images' paths are under")
    tokenized = (
        pipeline.interleave(media_root=root, text_column=field_name)
        .probe_images(media_root=root)
        .tokenize_interleaved(
            tokenizer_id=settings["tokenizer"],
            images=settings.get("images") or _POLICY,
            max_length=length,
            over_long="split",
        )
    )
    return _padded(tokenized, "pack_multimodal", max_length=length).decode_images(media_root=root).batch(1)


def _padded(pipeline: Pipeline, packer: str, **settings: Any) -> Pipeline:
    """With this packer; what stands for padding makes no difference here."""
    known = next(op.special_ids() for op, _ in vars(pipeline)["_steps"] if hasattr(op, "special_ids"))
    pad = {} if {"pad_token_id", "eos_token_id"} & set(known) else {"pad_token_id": 0}
    return getattr(pipeline, packer)(**settings, **pad)  # type: ignore[no-any-return]


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _load_module(name: str) -> Any:
    here = str(Path.cwd())
    if not name.endswith(".py"):
        if here not in sys.path:
            sys.path.insert(0, here)
        return importlib.import_module(name)
    path = Path(name).resolve()
    if not path.is_file():
        raise RecipeError(f"there is no file {name!r}")
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # dataclasses of the file look their module up
    spec.loader.exec_module(module)
    return module


# -------------------------------------------------------------------------------------------------------- the picture


def preview(pipeline: Pipeline, *, batches: int, title: str = "") -> Preview:
    """The first `batches` batches of a pipeline, which itself stays as it is."""
    own = copy.copy(pipeline)
    steps = [(_keeping_images(op), policy) for op, policy in vars(own)["_steps"]]
    vars(own).update(_batch_functions=[], _steps=steps)
    operators = [op for op, _ in steps]
    plan = own.explain()
    decoder = Decoder.of(operators)
    roots = [root for op in operators if (root := getattr(op, "media_root", None))]
    sequences: list[Packed] = []
    with closing(iter(own)) as running:  # type: ignore[type-var]
        for batch in islice(running, batches):
            sequences += _Rows(batch, own, decoder, roots).sequences()
    accounting = own.accounting()
    chain = " → ".join([", ".join(d.name for d in own.source.datasets), *(op.name for op in operators)])
    return Preview(title, chain, plan, sequences, accounting, _drops(accounting), _lost(accounting))


def _keeping_images(operator: Any) -> Any:
    """The operator, told to keep image files if it would take them away: a preview shows files rather than blocks of pixels."""
    return replace(operator, keep_images=True) if hasattr(operator, "keep_images") else operator


def _drops(accounting: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    rows, tokens = (accounting.get(side, {}).get("dropped", {}) for side in ("rows", "tokens"))
    return [(reason, rows.get(reason, 0), tokens.get(reason, 0)) for reason in dict.fromkeys((*rows, *tokens))]


def _lost(accounting: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    parts = accounting.get("parts", {})
    return [(kind, reason, number) for kind, lost in parts.items() for reason, number in lost["dropped"].items()]


class _Rows:
    """The rows of one batch, looked at."""

    def __init__(self, batch: Batch, pipeline: Pipeline, decoder: Decoder | None, roots: Sequence[str]) -> None:
        self._batch = batch
        self._group = batch.group
        self._names = set(batch.group.schema.names)
        self._datasets: Sequence[Any] = pipeline.source.datasets
        self._decoder = decoder
        self._roots = roots

    def sequences(self) -> Iterator[Packed]:
        """One for each row."""
        batch = self._batch
        for row in range(len(batch)):
            empty = bool(batch.is_empty[row])
            tokens: list[int] = self._value(groups.TOKENS, row) or []
            documents = [] if empty else list(self._documents(row, tokens))
            padding = len(tokens) if empty else int(self._value(groups.PADDING, row) or 0)
            number = batch.index * len(batch) + row
            yield Packed(batch.lane, batch.step, number, len(tokens), padding, empty, documents)

    def _value(self, name: str, row: int) -> Any:
        return self._group.column(name)[row].as_py() if name in self._names else None

    def _documents(self, row: int, tokens: Sequence[int]) -> Iterator[Document]:
        if groups.TOKENS not in self._names:
            yield Document(0, self._source(row), 0, 0, list(self._columns(row)))
            return
        lengths = self._value(groups.LENGTHS, row)
        if lengths is None:
            lengths = [len(tokens)]
        mask = self._value(groups.LOSS_MASK, row)
        trained = np.ones(len(tokens), dtype=bool) if mask is None else np.array(mask, dtype=bool)
        images = self._images(row)
        start = 0
        alignment = self._value(ALIGNMENT, row) or [0] * len(lengths)
        for number, (whole, aligned) in enumerate(zip(lengths, alignment, strict=True)):
            length = whole - aligned  # pad tokens at the end of a document are not shown
            stop = start + length
            inside = [(a - start, b - start, image) for a, b, image in images if start <= a < stop]
            parts = list(self._parts(tokens[start:stop], trained[start:stop], inside))
            yield Document(number, self._document_source(row, number), length, int(trained[start:stop].sum()), parts)
            start += whole

    def _parts(self, tokens: Sequence[int], trained: Any, images: Sequence[tuple[int, int, Shown]]) -> Iterator[Part]:
        """Text and images in turn."""
        place = 0
        for start, stop, image in (*images, (len(tokens), len(tokens), None)):
            for run in self._text(tokens[place:start], trained[place:start]):
                yield Part("special" if run.special else "text", run.text, run.trained, run.tokens)
            if image is not None:
                yield Part("image", tokens=stop - start, image=image)
            place = stop

    def _text(self, tokens: Sequence[int], trained: Any) -> Iterator[Run]:
        if self._decoder is not None:
            yield from self._decoder.runs(tokens, trained.tolist())
        elif len(tokens):
            yield Run(" ".join(map(str, tokens)), bool(trained.all()), False, len(tokens))

    def _columns(self, row: int) -> Iterator[Part]:
        """A row without tokens: its columns as they are."""
        for name in groups.user_columns(self._group.schema):
            if name not in (PIXELS, IMAGES):
                value = self._value(name, row)
                text = value if isinstance(value, str) else repr(value)
                short = text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]} … ({len(text):,} characters)"
                yield Part("special", f"{name}: ")
                yield Part("text", short + "\n")
        for image in self._all_images(row):
            yield Part("image", image=image)

    def _images(self, row: int) -> list[tuple[int, int, Shown]]:
        """`(start, stop, image)` for each span of the row's tokens."""
        spans = self._value(SPANS, row) or []
        shown = self._all_images(row)
        return [
            (s["start"], s["stop"], replace(shown[s["image"]], tokens=s["stop"] - s["start"]))
            for s in sorted(spans, key=lambda s: int(s["start"]))
            if s["image"] < len(shown)
        ]

    def _all_images(self, row: int) -> list[Shown]:
        files = self._value(IMAGES, row) or []
        plans = self._value(PLANS, row) or [None] * len(files)
        files = files or [None] * len(plans)
        infos = self._value(INFO, row) or [None] * len(files)
        pixels = self._group.column(PIXELS)[row].values if PIXELS in self._names else None
        valid = [True] * len(files) if pixels is None else pixels.is_valid().to_pylist()
        made = []
        for file, plan, info, good in zip(files, plans, infos, valid, strict=False):
            file = file if isinstance(file, dict) else {"bytes": file, "path": None}
            height, width, grid, blocks = _planned(plan["numbers"]) if plan else (0, 0, (), 0)
            if info and not height:
                height, width = info["height"], info["width"]
            data = file.get("bytes") or self._read(file.get("path"))
            made.append(Shown(data, file.get("path"), height, width, grid, 0, blocks, blank=not good))
        return made

    def _read(self, path: str | None) -> bytes | None:
        """A file under one of the folders that the pipeline's operators read from."""
        for root in self._roots if path and "://" not in path else ():
            file = (Path(root) / str(path)).resolve()
            if file.is_relative_to(Path(root).resolve()) and file.is_file():
                return file.read_bytes()
        return None

    def _document_source(self, row: int, number: int) -> str:
        lists = [self._value(name, row) for name in (groups.DOC_COMPONENT, groups.DOC_SHARD, groups.DOC_ROW, groups.DOC_START)]
        if lists[0] is None:
            return self._source(row)
        component, shard, origin, start = (values[number] if values else None for values in lists)
        return self._place(component, shard, origin) + (f", from token {start:,}" if start else "")

    def _source(self, row: int) -> str:
        return self._place(*(self._value(name, row) for name in (groups.COMPONENT, groups.SHARD, groups.ROW)))

    def _place(self, component: int | None, shard: int | None, row: int | None) -> str:
        if component is None or not 0 <= component < len(self._datasets):
            return "provenance unknown"
        dataset = self._datasets[component]
        files = dataset.shards
        file = Path(files[shard].path).name if shard is not None and 0 <= shard < len(files) else f"shard {shard}"
        return f"{dataset.name} · {file} · row {row:,}" if row is not None else f"{dataset.name} · {file}"


def _planned(numbers: Sequence[int]) -> tuple[int, int, tuple[int, ...], int]:
    """`(height, width, grid, blocks)` out of the numbers of an image plan: height, width, blocks, tokens, sizes, grid, …"""
    height, width, blocks, _, count = numbers[:5]
    rest = numbers[5 + 2 * count :]
    return height, width, tuple(rest[1 : 1 + rest[0]]) if rest else (), blocks


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
