"""The plug-in API: everything that a reader or an operator may rely on.

A package adds a reader under the entry-point group `zephon.formats`, or an operator under `zephon.operators`:
the entry point's name is the class's `name`, its object is the class. Zephon's own readers and operators come in the same way.
`zephon.testing.check_format` and `check_operator` run on a plug-in what we run on ours.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, BinaryIO, ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon import errors, groups, keys
from zephon.errors import DataError, PluginError, RecipeError, Where, at
from zephon.views import buffers

__all__ = [
    "Accumulator",
    "Apply",
    "Collates",
    "Collation",
    "CountsTokens",
    "DataError",
    "Decision",
    "Drops",
    "Fields",
    "FileInfo",
    "LaneWindow",
    "OpenShard",
    "Operator",
    "Outcome",
    "PluginError",
    "Reader",
    "RecipeError",
    "SelectOperator",
    "Selector",
    "Shard",
    "ShardWriter",
    "StatefulOperator",
    "Store",
    "Units",
    "at",
    "buffers",
    "errors",
    "groups",
    "keys",
    "place_of",
]

# ---------------------------------------------------------------------------------------------------- readers


@dataclass(frozen=True)
class FileInfo:
    """One file of a store: its full path or URL there, its size in bytes, and the store's version of it, if it has one."""

    path: str
    size: int
    etag: str = ""


class Store(Protocol):
    """Where files are. A reader is given one; it never opens storage by itself. All methods may be called from any thread."""

    def files(self, path: str) -> Sequence[FileInfo]:
        """All files below the directory `path` (or the file itself), sorted by path, hidden ones left out."""
        ...

    def open(self, path: str) -> BinaryIO:
        """A seekable binary file. Raises `DataError` where it does not exist or can't be read."""
        ...

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        """The bytes [start, stop) of a file; shorter than asked only at its end."""
        ...

    def local(self, path: str) -> str | None:
        """The path on local disk, for memory maps, or None for a store that isn't local."""
        ...

    def on_disk(self, path: str) -> AbstractContextManager[str]:
        """The whole file as a local path for the length of a `with` block: the file itself, a pinned copy in the shard cache,
        or a temporary download. For libraries that take nothing but paths; prefer `read` where a part is enough."""
        ...

    def sidecar(self, path: str, suffix: str) -> Sequence[str]:
        """Local paths where an index of `path` may be kept, best first: beside the data, then in the cache directory."""
        ...


@dataclass(frozen=True)
class Shard:
    """One file of a dataset, as a reader lists it; `extra` is the reader's own (plain values)."""

    path: str
    size: int
    etag: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Units:
    """The read units of one shard in file order: what is read in one go.

    `rows` and `nbytes` (decoded size, an estimate is good enough) are int64[U]. A unit's rows follow those of the unit before it.
    """

    rows: npt.NDArray[np.int64]
    nbytes: npt.NDArray[np.int64]


class OpenShard(Protocol):
    """A shard made ready for reading. Every method may be called from several threads at once.

    A shard that maps its file may have a further attribute, `mapped`: the map's `(address, size)`. Rows whose buffers lie there cost no
    memory, so the core leaves them there, instead of copying them to hold them. If values of text or bytes lie in the map, but not one
    after the other, it may have `views(unit, columns)` as well: the whole unit, with such columns as Arrow's view types. A shard whose
    groups may lie in a map that it can't tell has `shares_file = True`; the core then copies what it keeps. After either copy, and when a
    batch that shows a map is given out, it asks whether the file is still the one that was listed.
    """

    schema: pa.Schema
    """Of all columns, in the ordinary Arrow types (no views)."""

    def units(self) -> Units:
        """Row counts and sizes of the read units, from footers or an index, without reading the data."""
        ...

    def read(self, unit: int, columns: Sequence[str] | None, start: int, stop: int) -> Sequence[pa.RecordBatch]:
        """The rows [start, stop) of one unit, as one or more groups, only these columns (None: all; one that is missing
        in this shard: left out). Raises `DataError`, with `where.row` (the row in the shard) where a single row is at fault."""
        ...

    def close(self) -> None:
        """Release files; reading afterwards is an error."""
        ...


class ShardWriter(Protocol):
    """Writes one file, or one directory, of a format. Used by one thread, and closed or aborted once."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows that have the schema the writer was made with. Raises `DataError` for a value that the format can't hold."""
        ...

    def close(self) -> None:
        """Write what is left and the footer; only then is the file complete."""
        ...

    def abort(self) -> None:
        """Close without finishing, and remove what was written."""
        ...


@dataclass(frozen=True, kw_only=True)
class Reader(ABC):
    """A file format. Its fields are its options, all of them; they are part of the recipe.

    `splittable` says that `read` of a part of a unit costs in proportion to the part; else the core reads whole units and keeps them.
    """

    name: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]] = ()
    """File names that end so, in lower or upper case, are this format's shards, e.g. `(".parquet",)`."""
    index_files: ClassVar[tuple[str, ...]] = ()
    """A directory that holds a file of this name is this format's, e.g. `("index.json",)`; stronger than suffixes."""
    splittable: ClassVar[bool] = False
    part_suffix: ClassVar[str | None] = None
    """How the name of what `writer` makes ends, e.g. `".parquet"`; "": it makes a directory. None: the format has no writer."""

    def shards(self, store: Store, files: Sequence[FileInfo]) -> list[Shard]:
        """The shards among `files` (sorted by path), in a fixed order: those with one of the suffixes.

        Where none has, all: the user forced the format.
        """
        mine = [f for f in files if f.path.lower().endswith(self.suffixes)] if self.suffixes else []
        return [Shard(path=f.path, size=f.size, etag=f.etag) for f in (mine or files)]

    @classmethod
    def claims(cls, store: Store, files: Sequence[FileInfo]) -> bool:  # noqa: ARG003 - a default of an interface
        """Whether the data set that holds `files` is of this format; asked only where a suffix or an index file of this reader is there.

        For formats that share a suffix or the name of an index file: look at the file and tell. Raises nothing about files that are
        not of this format. `format=` goes past it.
        """
        return True

    @abstractmethod
    def open(self, store: Store, shard: Shard) -> OpenShard:
        """Read the footer or index of one shard. Raises `DataError` where the file isn't of this format."""

    def paths(self, shard: Shard) -> Sequence[str]:
        """The files that the rows of a shard are read from, where it is more than the shard's own: they must not change during a run,
        and of local ones that is checked at each read."""
        return (shard.path,)

    def writer(self, path: str, schema: pa.Schema) -> ShardWriter:
        """A writer of one new file (or directory) on local disk; what it writes, this reader reads back.

        Raises:
            PluginError: this format has no writer, or its library isn't installed.
            RecipeError: a column's type can't be kept in this format.
        """
        raise PluginError(f"format {self.name!r} has no writer")

    def finish(self, directory: str) -> None:
        """Called once, after all parts of a data set were written into `directory`: make one data set of them, where that takes more than
        lying side by side (one index file out of several). It may be called again after an interruption."""
        return


# -------------------------------------------------------------------------------------------------- operators


@dataclass(frozen=True)
class Drops:
    """What an operator left out of one group, by reason: the input rows, and how many tokens went with each.

    A row that only lost some tokens (truncation) is in `tokens`, not in `rows`.
    """

    rows: Mapping[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    """reason → indices of input rows that gave no output."""
    tokens: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """reason → {component: tokens dropped}. Where a reason has rows and no tokens, the tokens of these rows are counted."""
    records: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """reason → {component: records dropped}, for an accumulator that drops records of groups before the last one."""
    parts: Mapping[tuple[str, str], Mapping[int, int]] = field(default_factory=dict)
    """(kind, reason) → {component: parts dropped}: what rows lost without being dropped for it, such as ("images", "missing")."""


@dataclass(frozen=True)
class Outcome:
    """A group together with what was left out of it."""

    group: pa.RecordBatch
    drops: Drops = field(default_factory=Drops)


Apply = Callable[[pa.RecordBatch], "pa.RecordBatch | Outcome"]
"""A bound stateless operator. It gets a group with provenance columns and must carry them over (`groups.carry_provenance`)."""


@dataclass(frozen=True, kw_only=True)
class Operator(ABC):
    """One step of a recipe. Its fields are its settings, all of them and nothing else: they make the fingerprint. (Those that can change
    no byte, `field(metadata={"recipe": False})`, are left out.)

    A subclass is a frozen dataclass of plain values. What is heavy or cannot be pickled (a tokenizer, a decoder)
    is made in `bind`, which runs once in each worker.
    """

    name: ClassVar[str]
    """The entry point's name; also the name in errors, traces and reports."""
    version: ClassVar[int] = 1
    """Raised by one whenever equal settings would give different bytes than before."""
    stateful: ClassVar[bool] = False
    keeps_rows: ClassVar[bool] = False
    """Row i of the output is made from row i of the input alone, always. A restore then skips each row that it would drop; else it skips
    whole tasks only."""
    max_rows: ClassVar[int | None] = None
    """At most so many rows per call of `apply`; for operators whose output is far larger than their input."""

    def inputs(self) -> tuple[str, ...] | None:
        """The columns that this operator needs; None: any or all (it gets whatever the data has)."""
        return None

    def optional_inputs(self) -> tuple[str, ...]:
        """Columns that it uses where they are there."""
        return ()

    def viewed_inputs(self) -> tuple[str, ...]:
        """Input columns of text or bytes, or structs or lists of them, that it takes as Arrow's view types, too: where it is the first
        operator, their values needn't be copied for it. `buffers` shows those of either kind."""
        return ()

    def viewed_outputs(self) -> tuple[str, ...]:
        """Output columns that hold views where `viewed_inputs` came as such. They come so only where whoever is next takes these, too."""
        return ()

    def passes(self) -> bool:
        """Whether the input columns that it does not name reach its output. Where not, they need not be read."""
        return True

    def output_schema(self, schema: pa.Schema) -> pa.Schema | None:
        """The schema that follows from this input schema; None: known only when running.

        Raises `RecipeError` where the input doesn't fit.
        """
        return None

    def after(self, before: Sequence[Operator]) -> Operator:
        """This operator behind these ones, the nearest last, with what it takes from them filled in. Asked once, by `Pipeline.then`."""
        return self

    def prepare(self) -> None:  # noqa: B027 - a default of an interface
        """A run begins that will bind this operator in this process: begin, in the background, to load what takes long.

        May be called any number of times; what goes wrong is for `bind` to say.
        """

    @abstractmethod
    def bind(self) -> Callable[..., Any]:
        """Make the thing that works: an `Apply`; for a stateful operator its gather (see `StatefulOperator`)."""

    def fingerprint_parts(self) -> dict[str, Any]:
        """Further plain values that determine the output, beyond the fields (say, a hash of a vocabulary file)."""
        return {}


@dataclass(frozen=True)
class LaneWindow:
    """Which window an accumulator works for; the only thing besides groups that its decisions may depend on."""

    seed: int
    lane: int
    window: int
    first: int = 0
    """The number, in the lane's stream, of the window's first sequence. Only for an operator that is `by_step`."""
    per_step: int = 1
    """Sequences of the lane in a step; they are the numbers s * per_step to (s + 1) * per_step - 1 of its stream."""


@dataclass(frozen=True)
class Decision:
    """Rows that an accumulator decided to emit: light columns only, plus the payload by reference.

    `rows` has the column `groups.SOURCE` (`list<int32>`), the numbers of the groups that each row draws on, or `groups.PIECES`,
    which says the same; `sources` holds exactly those groups. Later accumulators may reorder `rows`; the payload is gathered after them.
    """

    rows: pa.RecordBatch
    sources: Mapping[int, pa.RecordBatch]
    drops: Drops = field(default_factory=Drops)
    """`drops.rows` may only be used with indices of the group that was just added."""
    weights: Mapping[int, int] = field(default_factory=dict)
    """About how many bytes sources take, by number, for the budget. The others are weighed, which takes long for many small ones."""


class Accumulator(Protocol):
    """The serial half of a stateful operator. One per lane and window; sees groups in order; is never pickled."""

    def add(self, group: pa.RecordBatch, number: int) -> Iterable[Decision]:
        """Take the next group; `number` is its number in this window, for `Decision.sources`."""
        ...

    def flush(self) -> Iterable[Decision]:
        """Emit what is still held; nothing is added after it."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes that it holds on to (payload included), for the budget."""
        ...


@dataclass(frozen=True, kw_only=True)
class StatefulOperator(Operator):
    """An operator that looks across groups: an accumulator decides, then `bind()`'s gather builds the rows on a worker."""

    stateful: ClassVar[bool] = True

    takes_views: ClassVar[bool] = False
    """Its accumulator and gather read list columns by `groups.list_spans` and `list_lengths`, so they may be given list views, which
    share memory with other groups: lists that come straight from the source are then not copied before they are gathered."""
    slices: ClassVar[bool] = False
    """The sources of its decisions are slices of larger groups: where decisions wait in an operator that selects, the engine copies
    them, so that the larger groups can go."""
    balances: ClassVar[bool] = False
    """Its accumulator makes sure at each flush that every row and token came out or is in its drops, and raises where not. Else the
    engine counts what goes in and what the gather gives; what nobody reported is then dropped as "left out", or added."""

    @abstractmethod
    def accumulator(self, where: LaneWindow) -> Accumulator:
        """A fresh accumulator for one lane and window."""

    @abstractmethod
    def bind(self) -> Callable[[pa.RecordBatch, Mapping[int, pa.RecordBatch]], pa.RecordBatch]:
        """The gather: `(decision rows, their sources) -> group`, one output row per decision row, in order."""

    def bind_shown(self, names: frozenset[str]) -> Callable[[pa.RecordBatch, Mapping[int, pa.RecordBatch]], pa.RecordBatch]:
        """The gather where the operator that follows takes these columns as views (`viewed_inputs`); it may then leave values of text and
        bytes where they are."""
        del names
        return self.bind()

    def empty_row(self, schema: pa.Schema | None) -> pa.RecordBatch | None:
        """One row that trains on nothing, for steps after a lane's end; None: there is no such row."""
        return None


class Selector(Protocol):
    """The serial half of an operator that only chooses an order: it sees light columns and answers with row numbers."""

    def add(self, rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """Take the next rows (numbered on through the window from 0); return numbers to emit now, in that order."""
        ...

    def flush(self) -> npt.NDArray[np.int64]:
        """The numbers of all rows still held, in the order to emit them."""
        ...


@dataclass(frozen=True, kw_only=True)
class SelectOperator(Operator):
    """A stateful operator that reorders rows and changes none. Each row must be emitted once; the engine checks it."""

    stateful: ClassVar[bool] = True
    keeps_rows: ClassVar[bool] = True
    by_step: ClassVar[bool] = False
    """Its order depends on the steps that rows fall into (`LaneWindow.first`). The engine can say which, and refuses it, unless what it
    emits is what the lane delivers: after it come only operators that keep rows, and under which nothing is skipped."""

    @abstractmethod
    def selector(self, where: LaneWindow) -> Selector:
        """A fresh selector for one lane and window."""

    def output_schema(self, schema: pa.Schema) -> pa.Schema | None:
        """The same schema."""
        return schema

    def bind(self) -> Callable[..., Any]:
        """Nothing to do on workers: the engine takes the rows."""
        return lambda group: group


@runtime_checkable
class CountsTokens(Protocol):
    """An operator whose output rows can be counted in tokens before packing; token estimation stops after it."""

    def token_column(self) -> str:
        """The name of the list column whose lengths are token counts."""
        ...


# ----------------------------------------------------------------------------------------------------- collating

Fields = Mapping[str, Callable[[], Any]]
"""What `Batch.to_training` returns, by name, each with the function that makes it; only what is not excluded is made."""


@dataclass(frozen=True)
class Collation:
    """A batch on its way to a trainer: what `Batch.to_training` knows, for operators that add to it."""

    group: pa.RecordBatch
    """The rows, as the last operator made them."""
    empty: int
    """So many rows at the end are empty sequences."""
    inputs: npt.NDArray[Any]
    """int[B, S]: the tokens that the model gets; may be a view of the group."""
    segments: npt.NDArray[np.int64]
    """The inputs of each segment (document piece, or padding at a row's end), row after row; they sum to B*S."""
    shift: bool
    """Whether the inputs lack the last token of each row (labels are then the next tokens)."""
    flatten: bool
    """Whether [B*S] is wanted instead of [B, S]."""
    dtype: np.dtype[Any]
    """Of integers that belong to tokens, e.g. positions."""
    options: Mapping[str, Any]
    """The keywords that operators declared (`training_options`), as given or by default."""
    finish: Callable[[npt.NDArray[Any]], Any]
    """Makes of a new, contiguous array what the caller of `to_training` asked for: a tensor, an array or lists."""


@runtime_checkable
class Collates(Protocol):
    """An operator that takes part in `Batch.to_training`: it knows what the columns that it made are for a trainer.

    The operators of a recipe are asked in order, each with the fields that those before it left.
    """

    def training_options(self) -> Mapping[str, Any]:
        """Further keywords of `to_training`, with their defaults; None: not known, another operator's default counts. `shift` is
        `to_training`'s own: its default changes."""
        ...

    def collate(self, batch: Collation, fields: Fields) -> Fields:
        """The fields, with some added, replaced or left out. Called in the consumer's thread for each batch: leave work to the fields."""
        ...


def place_of(group: pa.RecordBatch, row: int) -> Where:
    """Where a row of a group came from, as far as the group's provenance columns say."""
    known = {"row": groups.ROW, "shard": groups.SHARD, "component": groups.COMPONENT}
    there = {part: name for part, name in known.items() if group.schema.get_field_index(name) >= 0}
    place: dict[str, Any] = {part: int(groups.ints(group, name)[row]) for part, name in there.items()}
    return Where(**place)
