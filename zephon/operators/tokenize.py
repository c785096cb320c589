"""`tokenize`: a text column to a column of token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon import groups
from zephon.arrays import to_numpy
from zephon.crews import share
from zephon.errors import DataError, RecipeError, unknown
from zephon.gathers import gather_ranges
from zephon.keys import I64
from zephon.operators.text_encoder import TextEncoder, begin_file, default_frame
from zephon.operators.token_backends import Ahead, Library
from zephon.operators.token_backends.base import I32, flat
from zephon.operators.tokenizer_files import LoadedTokenizer, content_hash, load_tokenizer
from zephon.plugin import Drops, Operator, Outcome, place_of

SpecialTokens = Literal["auto", "bos_eos", "bos", "eos", "none", "tokenizer_default"]
OverLong = Literal["split", "truncate", "drop"]
MissingField = Literal["error", "empty"]

ATTENTION_MASK = "attention_mask"

_HINT: Any = field(default=None, metadata={"recipe": False})
"""A setting that has no part in the recipe. (In the class, `field` is a setting's name.)"""
_BACKEND: Any = field(default="auto", metadata={"recipe": False})


@dataclass(frozen=True, kw_only=True)
class Tokenize(Operator):
    """Encode a text column. Each row gets exactly the special tokens that `special_tokens` says, also where the text or the
    tokenizer has them already. A text without tokens of its own is dropped and counted, never an empty sequence.
    """

    name: ClassVar[str] = "tokenize"

    tokenizer_id: str | None = field(default=None, metadata={"recipe": False})
    """A hub id, or the path of a `tokenizer.json` or of the folder that holds it. What counts in the recipe is the vocabulary."""
    tokenizer: Any = field(default=None, repr=False, metadata={"recipe": False})
    """Instead: a `tokenizers.Tokenizer` or a transformers tokenizer."""
    field: str = "text"
    output: str = groups.TOKENS
    special_tokens: SpecialTokens = "auto"
    """What stands around each row: `bos_eos`, `bos`, `eos`, `none`; `tokenizer_default`: what the tokenizer itself adds;
    `auto`: that too, or where it adds nothing (GPT-2, Qwen) an EOS at the end, so that packed documents have a border."""
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    add_attention_mask: bool = False
    """Add the column `attention_mask`, all ones."""
    max_length: int | None = None
    """The most tokens of a row, special tokens included."""
    over_long: OverLong = "split"
    """What becomes of longer texts: `split` makes several rows, each with its own special tokens."""
    allow_special: bool = False
    """Let special strings in the text (`<|endoftext|>`) become special tokens. Else they are ordinary text."""
    preserve_upstream_payload: bool = False
    """Keep the other columns."""
    missing_field: MissingField = "error"
    """What to do where the text is null or its column is missing; `empty` takes it as an empty text."""
    backend: Library = _BACKEND
    """Which library encodes; ids are the same, so it has no part in the recipe."""
    parallelism: int | None = _HINT
    """How many groups to tokenise at once; not part of the recipe."""

    def __post_init__(self) -> None:
        if (self.tokenizer_id is None) == (self.tokenizer is None):
            raise RecipeError("tokenize takes either tokenizer_id= or tokenizer=")
        for what, value, known in (
            ("special_tokens", self.special_tokens, get_args(SpecialTokens)),
            ("over_long", self.over_long, get_args(OverLong)),
            ("missing_field", self.missing_field, get_args(MissingField)),
            ("backend", self.backend, get_args(Library)),
        ):
            if value not in known:
                raise RecipeError(f"tokenize: {unknown(what, str(value), known)}")
        if self.max_length is not None and self.max_length < 1:
            raise RecipeError(f"max_length of tokenize is {self.max_length}; it must be ≥ 1")
        if self.parallelism is not None and self.parallelism < 1:
            raise RecipeError(f"parallelism of tokenize is {self.parallelism}; it must be ≥ 1")

    def inputs(self) -> tuple[str, ...]:
        """The text."""
        return () if self.missing_field == "empty" else (self.field,)

    def optional_inputs(self) -> tuple[str, ...]:
        """The text, where it may be missing."""
        return (self.field,) if self.missing_field == "empty" else ()

    def viewed_inputs(self) -> tuple[str, ...]:
        """The text, unless it goes on from here: a copy for each `str` is made anyway."""
        return () if self.preserve_upstream_payload else (self.field,)

    def passes(self) -> bool:
        """Only with `preserve_upstream_payload`."""
        return self.preserve_upstream_payload

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        """The token columns, the provenance, and the other columns if they are kept."""
        index = schema.get_field_index(self.field)
        if index < 0 and self.missing_field == "error":
            raise RecipeError(
                f"tokenize: {unknown('column', self.field, groups.user_columns(schema))}", hint="name it with field="
            )
        if index >= 0:
            _check_text(schema.field(index).type, self.field)
        made: dict[str, Any] = {}
        if self.preserve_upstream_payload:
            made = {f.name: f for f in schema if f.name not in groups.PROVENANCE}
        made[self.output] = pa.field(self.output, pa.list_(pa.int32()))
        if self.add_attention_mask:
            made[ATTENTION_MASK] = pa.field(ATTENTION_MASK, pa.list_(pa.uint8()))
        return pa.schema([*made.values(), *(f for f in schema if f.name in groups.PROVENANCE)])

    def token_column(self) -> str:
        """`output`: its lengths are token counts."""
        return self.output

    def prepare(self) -> None:
        """Have a quicker library load the vocabulary in the background: nothing else takes so long before a first batch."""
        if "_ahead" not in vars(self):
            vars(self)["_ahead"] = begin_file(self.tokenizer_id, allow_special=self.allow_special, backend=self.backend)

    def bind(self) -> BoundTokenize:
        """Load the tokenizer. Raises `RecipeError` where there is none, or it lacks a special token that is asked for."""
        self.prepare()
        try:
            return BoundTokenize(self, vars(self).get("_ahead"))
        finally:
            vars(self).pop("_ahead", None)

    def fingerprint_parts(self) -> dict[str, Any]:
        """The vocabulary, by a hash of its content, and the special tokens that it comes down to."""
        return {"vocabulary": self._vocabulary, "frame": [list(part) for part in self.frame]}

    def special_ids(self) -> dict[str, int]:
        """The special tokens that are known, for operators that follow: `bos_token_id`, `eos_token_id`, `pad_token_id`, .."""
        given = {"bos_token_id": self.bos_token_id, "eos_token_id": self.eos_token_id}
        self.check_ids(given)
        return {**self.loaded.special, **{name: value for name, value in given.items() if value is not None}}

    def check_ids(self, ids: Mapping[str, int | None], operator: str = "tokenize") -> None:
        """Raises `RecipeError` for an id that the vocabulary doesn't have."""
        self.loaded.check_ids(operator, ids)

    @cached_property
    def loaded(self) -> LoadedTokenizer:
        """The tokenizer, loaded at the first use."""
        return load_tokenizer(self.tokenizer if self.tokenizer is not None else self.tokenizer_id)

    @cached_property
    def _vocabulary(self) -> str:
        return content_hash(self.loaded)

    @cached_property
    def frame(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The special tokens before and after each row. Raises `RecipeError` where the tokenizer lacks one that is asked for."""
        mode = self.special_tokens
        if mode in ("auto", "tokenizer_default"):
            before, after = default_frame(self.loaded)
            eos = self.special_ids().get("eos_token_id")
            return (before, after) if mode != "auto" or before or after or eos is None else ((), (eos,))
        return (self._special("bos"),) if "bos" in mode else (), (self._special("eos"),) if "eos" in mode else ()

    def _special(self, which: str) -> int:
        known = self.special_ids()
        if f"{which}_token_id" not in known:
            raise RecipeError(
                f"special_tokens={self.special_tokens!r} needs the {which.upper()} token, which this tokenizer doesn't name",
                hint=f"give {which}_token_id=",
            )
        return known[f"{which}_token_id"]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tokenize):
            return NotImplemented
        mine, theirs = _plain_settings(self), _plain_settings(other)
        # tokenizer objects compare by identity, and lose it when pickled
        return mine == theirs and (self.tokenizer is other.tokenizer or self._vocabulary == other._vocabulary)

    def __hash__(self) -> int:
        return hash(
            (type(self), self.tokenizer_id, self.field, self.output, self.special_tokens, self.max_length, self.over_long)
        )

    def __getstate__(self) -> dict[str, Any]:
        # what was loaded is loaded again where it is used
        return {f.name: getattr(self, f.name) for f in fields(self)}


def _plain_settings(operator: Tokenize) -> dict[str, Any]:
    settings = {f.name: getattr(operator, f.name) for f in fields(operator) if f.name != "tokenizer"}
    return settings | {"object": operator.tokenizer is not None}


class BoundTokenize:
    """The operator with its tokenizer; any number of threads may call it."""

    def __init__(self, settings: Tokenize, ahead: Ahead | None) -> None:
        self._settings = settings
        self._encoder = TextEncoder(
            settings.loaded, allow_special=settings.allow_special, backend=settings.backend, ahead=ahead
        )
        before, after = settings.frame
        self._before = np.array(before, dtype=np.int32)
        self._after = np.array(after, dtype=np.int32)
        self._added = len(before) + len(after)
        if settings.max_length is not None and settings.max_length <= self._added:
            raise RecipeError(
                f"max_length of tokenize is {settings.max_length}, and {self._added} of them are special tokens",
                hint="raise max_length, or choose other special_tokens",
            )
        special = settings.special_ids()
        self._borders = np.array([special[n] for n in ("bos_token_id", "eos_token_id") if n in special], dtype=np.int32)

    def __call__(self, group: pa.RecordBatch) -> Outcome:
        """Tokenise a group."""
        settings = self._settings
        # in parts: what each leaves behind in the heap of its thread is small, and used again by the next
        parts = share([partial(self._encode, part) for part in _parts(group, settings.field)])
        if settings.allow_special:
            parts = [flat(parts)]
        ids = [found for found, _ in parts]
        lengths = np.concatenate([sizes for _, sizes in parts])
        begins = np.concatenate([np.cumsum(sizes) - sizes for _, sizes in parts])
        which = np.repeat(np.arange(len(parts)), [len(sizes) for _, sizes in parts])
        dropped = _Dropped(group)
        real = lengths > 0
        if settings.allow_special:
            begins, lengths, real = self._strip(ids[0], begins, lengths)
        if not real.all():
            dropped.add_rows("empty", np.flatnonzero(~real), lengths)
        rows, begins, lengths = self._fit(np.flatnonzero(real), begins, lengths, dropped)
        made = self._build(group, rows, self._frame(ids, which[rows], begins, lengths), lengths + self._added)
        return Outcome(made, dropped.drops)

    def _encode(self, part: pa.RecordBatch) -> tuple[I32, I64]:
        return self._encoder.encode(_texts(part, self._settings))

    def _strip(self, ids: I32, begins: I64, lengths: I64) -> tuple[I64, I64, npt.NDArray[np.bool_]]:
        """Leave out the special tokens that stand where ours will; and which texts have more than BOS and EOS."""
        if not len(ids):
            return begins, lengths, lengths > 0
        begins, ends = begins.copy(), begins + lengths
        before, after = self._before, self._after
        if len(before):
            for row in np.flatnonzero((ends > begins) & (ids.take(begins, mode="clip") == before[0])).tolist():
                while np.array_equal(ids[begins[row] : min(begins[row] + len(before), ends[row])], before):
                    begins[row] += len(before)
        if len(after):
            for row in np.flatnonzero((ends > begins) & (ids.take(ends - 1, mode="clip") == after[-1])).tolist():
                while np.array_equal(ids[max(ends[row] - len(after), begins[row]) : ends[row]], after):
                    ends[row] -= len(after)
        others = np.concatenate([[0], np.cumsum(~np.isin(ids, self._borders))])
        return begins, ends - begins, others[ends] > others[begins]

    def _fit(self, rows: I64, begins: I64, lengths: I64, dropped: _Dropped) -> tuple[I64, I64, I64]:
        """`(origin, begin, length)` of each output row, by `max_length` and `over_long`."""
        begins, lengths = begins[rows], lengths[rows]
        if self._settings.max_length is None:
            return rows, begins, lengths
        limit = self._settings.max_length - self._added
        over = lengths > limit
        if not over.any():
            return rows, begins, lengths
        policy = self._settings.over_long
        if policy == "truncate":
            dropped.add_tokens("truncated", rows[over], lengths[over] - limit)
            return rows, begins, np.minimum(lengths, limit)
        if policy == "drop":
            whole = np.zeros(int(rows.max()) + 1, dtype=np.int64)
            whole[rows] = lengths + self._added
            dropped.add_rows("over-long", rows[over], whole)
            return rows[~over], begins[~over], lengths[~over]
        counts = -(-lengths // limit)
        piece = np.repeat(np.arange(len(rows)), counts)
        skip = (np.arange(len(piece)) - np.repeat(np.cumsum(counts) - counts, counts)) * limit
        return rows[piece], begins[piece] + skip, np.minimum(lengths[piece] - skip, limit)

    def _frame(self, ids: Sequence[I32], which: I64, begins: I64, lengths: I64) -> I32:
        """`ids[which][begin:begin + length]` of each row with the special tokens around it, one row after the other, in one copy."""
        if not self._added and len(ids) == 1 and int(lengths.sum()) == len(ids[0]):
            return ids[0]
        # (array, begin, length) of what stands before, of the text, and of what stands after, row by row
        before, after = (len(ids), 0, len(self._before)), (len(ids) + 1, 0, len(self._after))
        stretches: list[tuple[Any, Any, Any]] = [(which, begins, lengths)]
        stretches = [before] * (before[2] > 0) + stretches + [after] * (after[2] > 0)
        places = np.empty((3, len(which), len(stretches)), dtype=np.int64)
        for number, stretch in enumerate(stretches):
            for axis, values in enumerate(stretch):
                places[axis, :, number] = values
        return gather_ranges([*ids, self._before, self._after], *places.reshape(3, -1))

    def _build(self, group: pa.RecordBatch, rows: I64, tokens: I32, lengths: I64) -> pa.RecordBatch:
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        settings = self._settings
        whole = len(rows) == group.num_rows and bool((rows == np.arange(len(rows))).all())
        if not settings.preserve_upstream_payload:
            group = groups.select(group, [n for n in group.schema.names if n in groups.PROVENANCE])
        made = group if whole else groups.take(group, rows)
        columns = {settings.output: groups.make_list(offsets, tokens)}
        if settings.add_attention_mask:
            columns[ATTENTION_MASK] = groups.make_list(offsets, np.ones(len(tokens), dtype=np.uint8))
        return _with_columns(made, columns)


class _Dropped:
    """What was left out of a group, with its tokens per component."""

    def __init__(self, group: pa.RecordBatch) -> None:
        self._component = groups.provenance(group, groups.COMPONENT, unknown=-1)
        self._rows: dict[str, I64] = {}
        self._tokens: dict[str, Mapping[int, int]] = {}

    @property
    def drops(self) -> Drops:
        return Drops(self._rows, self._tokens)

    def add_rows(self, reason: str, rows: I64, lengths: I64) -> None:
        self._rows[reason] = rows.astype(np.int64)
        self.add_tokens(reason, rows, lengths[rows])

    def add_tokens(self, reason: str, rows: I64, amounts: I64) -> None:
        components = self._component[rows]
        sums = {int(c): int(amounts[components == c].sum()) for c in np.unique(components)}
        if any(sums.values()):
            self._tokens[reason] = {c: n for c, n in sums.items() if n}


def _parts(group: pa.RecordBatch, field: str) -> list[pa.RecordBatch]:
    """The group in slices of about `_BYTES_AT_ONCE` of text; one where that is all there is."""
    index = group.schema.get_field_index(field)
    size = 0 if index < 0 else groups.nbytes(groups.select(group, [field]))  # of views, what they show
    rows = max(1, group.num_rows * _BYTES_AT_ONCE // max(1, size))
    return [group.slice(at, rows) for at in range(0, group.num_rows, rows)] or [group]


_BYTES_AT_ONCE = 1 << 20


def _texts(group: pa.RecordBatch, settings: Tokenize) -> list[str]:
    if settings.missing_field == "empty" and group.schema.get_field_index(settings.field) < 0:
        return [""] * group.num_rows
    array = groups.column(group, settings.field)
    _check_text(array.type, settings.field)
    if array.null_count:
        if settings.missing_field == "error":
            row = int(np.flatnonzero(to_numpy(array.is_null()))[0])
            raise DataError(
                f"the text in column {settings.field!r} is null",
                where=place_of(group, row),
                hint="missing_field='empty' drops and counts such records",
            )
        if pa.types.is_null(array.type):
            return [""] * group.num_rows
    try:
        texts = array.to_pylist()
    except UnicodeDecodeError as error:
        raise DataError(f"column {settings.field!r} holds text that is not UTF-8: {error}") from error
    return ["" if text is None else text for text in texts] if array.null_count else texts


def _check_text(kind: Any, name: str) -> None:
    t = pa.types
    kind = kind.value_type if t.is_dictionary(kind) else kind
    if t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind) or t.is_null(kind):
        return
    if t.is_binary(kind) or t.is_large_binary(kind) or t.is_binary_view(kind):
        raise RecipeError(f"column {name!r} holds bytes, not text", hint=f"add .decode_text(field={name!r}) before tokenising")
    raise RecipeError(f"column {name!r} is {kind}, not text", hint="name the text column with field=")


def _with_columns(group: pa.RecordBatch, columns: Mapping[str, Any]) -> pa.RecordBatch:
    """Payload columns in order, new ones behind them, provenance last."""
    made = {n: groups.column(group, n) for n in group.schema.names if n not in groups.PROVENANCE}
    made.update(columns)
    made.update({n: groups.column(group, n) for n in group.schema.names if n in groups.PROVENANCE})
    return pa.RecordBatch.from_arrays(list(made.values()), names=list(made))
