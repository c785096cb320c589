"""`tokenize_interleaved`: canonical documents to token ids, loss masks, image spans and image plans."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import pyarrow as pa

from zephon import groups
from zephon.errors import DataError, RecipeError, ZephonError, unknown
from zephon.operators.text_encoder import begin_file, default_frame
from zephon.operators.token_backends import Ahead, Library
from zephon.operators.tokenizer_files import LoadedTokenizer, content_hash, load_tokenizer
from zephon.plugin import Drops, Operator, Outcome, place_of
from zephon_vision import columns
from zephon_vision._bad_images import BadImages, LostImages, check_ratio, components_of
from zephon_vision._decoders_source import check_image_lists, check_media_root
from zephon_vision._inherited import Exif, check_exif, exif_parts, inherited
from zephon_vision._tokens_assemble import SCHEMA, Output, Pieces, build, make_pieces, replan
from zephon_vision._tokens_images import GroupImages, Planner
from zephon_vision._tokens_rows import LeftOut, OnBadImage, RowRules, Sample, Segments, TrainOn, read_row
from zephon_vision._tokens_vocabulary import Vocabulary, named_strings, special_strings
from zephon_vision.chat.base import IMAGE, Renderer
from zephon_vision.chat.choose import NAMES, WITH_BOS, renderer, resolve, template_of
from zephon_vision.collate import CollatesVision
from zephon_vision.policies.base import Policy, load
from zephon_vision.truncate import cut_chat, cut_document

OverLong = Literal["error", "drop", "truncate", "split", "fit_images"]

_UNTRAINED = "nothing to train on"


def _outside() -> Any:
    """A setting that has no part in the recipe."""
    return field(default=None, metadata={"recipe": False})


@dataclass(frozen=True, kw_only=True)
class TokenizeInterleaved(CollatesVision, Operator):
    """Turn segments into token ids, with each image as the whole run of tokens that its model expects.

    Special tokens are put in by id; what users write stays text, `<image>` and `<|image_pad|>` too. Images are planned from their sizes
    alone (`image_info` of `probe_images`, else their headers). Chats are written by a template; documents without roles between BOS and
    EOS. The mask has 1 on trained text, 0 on images, templates and what others say.

    Makes `input_ids`, `loss_mask`, `mm_token_type_ids` (1 on the images' own tokens), `image_spans`, `image_plans`, `images` (those that
    are used, in the order of the spans), and per row `image_tokens` and `image_blocks`, which are what its images cost.
    """

    name: ClassVar[str] = "tokenize_interleaved"

    tokenizer_id: str | None = _outside()
    """A hub id, or the path of a `tokenizer.json` or of the folder that holds it. What counts in the recipe is the vocabulary."""
    tokenizer: Any = field(default=None, repr=False, metadata={"recipe": False})
    """Instead: a `tokenizers.Tokenizer`, a transformers tokenizer, or again a path or id."""
    images: str | Policy | None = field(default="qwen2_5_vl", metadata={"recipe": False})
    """The image policy: its name, with settings as JSON after it, or `from:PATH` of a model's `preprocessor_config.json`. None: samples
    have no images, and the trainer gets them as text (see `shift` of `to_training`)."""
    template: str = "auto"
    """How chats are written: `chatml`, `llama3`, `llama4`, `gemma`, `mistral`, `llava`, `plain`; `own`: the tokenizer's own template;
    `auto`: that, where it has one, else by its special tokens."""
    chat_template: str | None = _outside()
    """The text of a template to use as the tokenizer's own."""
    system: str | None = None
    """The system prompt of chats without one; "" for none. None: what the family does."""
    train_on: TrainOn = "assistant"
    """`assistant`: the text that `interleave` marked (what the assistant says with the token that ends it, all text of documents);
    `all`: all text, the template's too; `none`."""
    max_length: int | None = None
    """The most tokens of a row."""
    over_long: OverLong = "error"
    """What becomes of longer ones. `truncate`: documents are cut at the limit, before an image that doesn't fit; chats after the last
    answer that fits. `split`: documents go on in a new row, chats are truncated. `fit_images`: their images are planned smaller, as
    little as possible; those that are too long even so are dropped. Nothing is ever cut inside an image."""
    on_bad_image: OnBadImage = "auto"
    """What becomes of images that are missing, unreadable or refused. `drop_sample`; `drop_image`: the sample goes on without; `blank`: a
    grey one takes its place, and nothing of the sample is trained; `error`. `auto`: chats are dropped, documents go on without."""
    max_bad_ratio: float | None = field(default=0.05, metadata={"recipe": False})
    """More missing and unreadable images than this share of those that a worker has seen of a data set (at least 1,000) are an error,
    whatever `on_error` is: a wrong `media_root` must not pass as a smaller data set. None: any number. It is no part of the recipe."""
    require_image: bool = False
    """Drop samples without images."""
    max_images: int | None = None
    """Drop samples with more."""
    min_side: int | None = None
    """Images whose shorter side has fewer pixels are bad ones."""
    max_aspect: float | None = None
    """Images longer than this times their width, or wider, are bad ones."""
    min_image_tokens: int | None = None
    """Images that stand for fewer tokens are bad ones."""
    media_root: str | None = _outside()
    """Without `probe_images`: the local folder that paths are relative to. None: as the operators before it."""
    exif: Exif | None = field(default=None, metadata={"recipe": False})
    """Without `probe_images`: whether EXIF orientations are taken into account (`apply`), or sizes as they are stored (`ignore`). None: as
    the operators before it; else `apply`."""
    bos: bool | None = None
    """Whether documents begin with BOS. None: as the tokenizer and the template do it. Never twice."""
    eos: bool | None = None
    """Whether documents without roles end with EOS. None: where the tokenizer has one."""
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    pad_token_id: int | None = None
    """For packers that follow."""
    backend: Library = field(default="auto", metadata={"recipe": False})
    """Which library encodes; ids are the same, so it has no part in the recipe."""
    parallelism: int | None = _outside()
    """How many groups to tokenise at once; not part of the recipe."""

    def __post_init__(self) -> None:
        if (self.tokenizer_id is None) == (self.tokenizer is None):
            raise RecipeError("tokenize_interleaved takes either tokenizer_id= or tokenizer=")
        for what, value, known in (
            ("template", self.template, NAMES),
            ("train_on", self.train_on, get_args(TrainOn)),
            ("over_long", self.over_long, get_args(OverLong)),
            ("on_bad_image", self.on_bad_image, get_args(OnBadImage)),
            ("backend", self.backend, get_args(Library)),
        ):
            if value not in known:
                raise RecipeError(f"tokenize_interleaved: {unknown(what, str(value), known)}")
        for name, least in (
            ("max_length", 1),
            ("max_images", 0),
            ("min_side", 1),
            ("max_aspect", 1),
            ("min_image_tokens", 1),
            ("parallelism", 1),
        ):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or value < least):
                raise RecipeError(f"{name} of tokenize_interleaved is {value!r}; it must be ≥ {least}")
        check_ratio(self.max_bad_ratio, self.name)
        check_exif(self.exif, self.name)
        if self.over_long != "error" and self.max_length is None:
            raise RecipeError(f"over_long={self.over_long!r} of tokenize_interleaved needs max_length=")

    def after(self, before: Sequence[Operator]) -> Operator:
        """With the folder and the way with EXIF that operators before it were told."""
        return inherited(self, before, "media_root", "exif")

    def inputs(self) -> tuple[str, ...]:
        """What `interleave` makes."""
        return (columns.SEGMENTS, columns.IMAGES)

    def optional_inputs(self) -> tuple[str, ...]:
        """What `probe_images` adds."""
        return (columns.IMAGE_INFO,)

    def viewed_inputs(self) -> tuple[str, ...]:
        """The images."""
        return (columns.IMAGES,)

    def viewed_outputs(self) -> tuple[str, ...]:
        """The images, those that are used."""
        return (columns.IMAGES,)

    def passes(self) -> bool:
        """Only provenance."""
        return False

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        """The token and image columns, and the provenance."""
        for name in self.inputs():
            if schema.get_field_index(name) < 0:
                raise RecipeError(
                    f"tokenize_interleaved: {unknown('column', name, groups.user_columns(schema))}",
                    hint="put interleave() before it",
                )
        _check_types(schema)
        return pa.schema([*SCHEMA, *(f for f in schema if f.name in groups.PROVENANCE)])

    def token_column(self) -> str:
        """`input_ids`: its lengths are token counts."""
        return groups.TOKENS

    def special_ids(self) -> dict[str, int]:
        """The special tokens that are known, for operators that follow: `bos_token_id`, `eos_token_id`, `pad_token_id`, .."""
        given = {n: getattr(self, n) for n in ("bos_token_id", "eos_token_id", "pad_token_id")}
        self.loaded.check_ids(self.name, given)
        return {**self.loaded.special, **{name: value for name, value in given.items() if value is not None}}

    def prepare(self) -> None:
        """Have a quicker library load the vocabulary in the background."""
        if "_ahead" not in vars(self):
            vars(self)["_ahead"] = begin_file(self._given, allow_special=False, backend=self.backend)

    def training_options(self) -> Mapping[str, Any]:
        """See `CollatesVision`; text without images is shifted as text is."""
        return {**super().training_options(), "shift": self.images is None}

    def bind(self) -> BoundTokenizeInterleaved:
        """Load the tokenizer and the policy. Raises `RecipeError` where they don't go together, or `media_root` isn't there."""
        check_media_root(self.media_root, self.name)
        self.prepare()
        try:
            return BoundTokenizeInterleaved(self, vars(self).get("_ahead"))
        finally:
            vars(self).pop("_ahead", None)

    def fingerprint_parts(self) -> dict[str, Any]:
        """The vocabulary by a hash of its content, the policy with its settings, the template by name and hash, and the frame."""
        source = self._source if self.resolved == "own" else None
        return {
            "vocabulary": self._vocabulary,
            "policy": self.policy.spec(),
            "chat": self.resolved,
            "chat_template": None if source is None else hashlib.blake2b(source.encode(), digest_size=8).hexdigest(),
            "frame": [list(part) for part in self.frame],
            "named": sorted(named_strings(self.loaded).items()),
            **exif_parts(self.exif),
        }

    @cached_property
    def loaded(self) -> LoadedTokenizer:
        """The tokenizer, loaded at the first use."""
        return load_tokenizer(self._given)

    @cached_property
    def policy(self) -> Policy:
        """The image policy."""
        return self.images if isinstance(self.images, Policy) else load(self.images or "none")

    @cached_property
    def resolved(self) -> str:
        """The name of the template that is used."""
        return resolve(self.template, special_strings(self.loaded), self._source)

    @property
    def renderer(self) -> Renderer:
        """What writes chats."""
        specials = special_strings(self.loaded)
        named = named_strings(self.loaded)
        policy = self.policy
        return renderer(self.resolved, specials, self._source, named, policy.placeholder, policy.name, self.system)

    @property
    def _given(self) -> Any:
        return self.tokenizer if self.tokenizer is not None else self.tokenizer_id

    @cached_property
    def _source(self) -> str | None:
        if self.chat_template is not None or self.template not in ("auto", "own"):
            return self.chat_template
        return template_of(self._given)

    @cached_property
    def _vocabulary(self) -> str:
        return content_hash(self.loaded)

    @cached_property
    def frame(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The special tokens before and after each document without roles.

        Raises:
            RecipeError: the tokenizer lacks one that is asked for.
        """
        before, after = default_frame(self.loaded)
        if self.bos is not None:
            before = (self._special("bos"),) if self.bos else ()
        if self.eos is not None:
            after = (self._special("eos"),) if self.eos else ()
        elif not after and "eos_token_id" in self.special_ids():
            after = (self._special("eos"),)
        return before, after

    def _special(self, which: str) -> int:
        known = self.special_ids()
        if f"{which}_token_id" not in known:
            raise RecipeError(f"this tokenizer doesn't name its {which.upper()} token", hint=f"give {which}_token_id=")
        return known[f"{which}_token_id"]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TokenizeInterleaved):
            return NotImplemented
        mine, theirs = ({f.name: getattr(o, f.name) for f in fields(o) if f.name != "tokenizer"} for o in (self, other))
        same = (self.tokenizer is None) == (other.tokenizer is None)
        # tokenizer objects compare by identity, and lose it when pickled
        return mine == theirs and same and (self.tokenizer is other.tokenizer or self._vocabulary == other._vocabulary)

    def __hash__(self) -> int:
        return hash((type(self), self.tokenizer_id, self.template, self.train_on, self.max_length, self.over_long))

    def __getstate__(self) -> dict[str, Any]:
        # what was loaded is loaded again where it is used
        return {f.name: getattr(self, f.name) for f in fields(self)}


class BoundTokenizeInterleaved:
    """The operator with its tokenizer and policy; any number of threads may call it."""

    def __init__(self, settings: TokenizeInterleaved, ahead: Ahead | None = None) -> None:
        self._settings = settings
        policy = settings.policy
        self._vocabulary = Vocabulary(settings.loaded, policy.special_tokens, settings.backend, ahead)
        self._planner = Planner(policy, self._vocabulary.special_ids(policy))
        before, after = settings.frame
        if settings.max_length is not None and settings.max_length <= len(before) + len(after):
            raise RecipeError(f"max_length of tokenize_interleaved is {settings.max_length}, no more than BOS and EOS")
        bos = settings.special_ids().get("bos_token_id")
        has_bos = settings.bos is not False and settings.resolved in WITH_BOS
        self._rules = RowRules(
            render=settings.renderer,
            specials=self._vocabulary.specials,
            before=before,
            after=after,
            bos=bos,
            family_bos=bos if has_bos else None,
            around=policy.around,
            train_on=settings.train_on,
            on_bad_image=settings.on_bad_image,
            max_images=settings.max_images,
            min_image_tokens=settings.min_image_tokens,
            require_image=settings.require_image,
        )
        self._seen = BadImages(settings.max_bad_ratio, settings.name)

    def __call__(self, group: pa.RecordBatch) -> Outcome:
        """Tokenise a group."""
        settings = self._settings
        _check_types(group.schema)
        images = GroupImages(
            group,
            min_side=settings.min_side,
            max_aspect=settings.max_aspect,
            media_root=settings.media_root,
            exif=settings.exif,
        )
        segments = Segments(group)
        dropped = _Dropped(group)
        samples: list[Sample] = []
        for row in range(group.num_rows):
            try:
                made = read_row(row, segments, images, self._planner, self._rules)
            except ZephonError as error:
                error.where = error.where.within(place_of(group, row))
                raise
            for why in made.lost:
                dropped.images.add(row, why)
            if isinstance(made, LeftOut):
                dropped.row(made.reason, row)
            else:
                samples.append(made)
        self._seen.of_rows(group, *images.seen())
        pieces = make_pieces(samples, self._vocabulary, self._planner)
        if settings.over_long == "fit_images":
            pieces = self._fit(samples, pieces)
        outputs: list[Output] = []
        for number, (sample, total) in enumerate(zip(samples, pieces.totals().tolist(), strict=True)):
            outputs += self._documents(number, sample, total, pieces, dropped, group)
        return Outcome(build(group, samples, pieces, outputs, images), dropped.drops)

    def _fit(self, samples: list[Sample], pieces: Pieces) -> Pieces:
        """Plan the images of samples that are too long anew, as large as fits."""
        limit = self._settings.max_length
        assert limit is not None
        changed = False
        for sample, total in zip(samples, pieces.totals().tolist(), strict=True):
            if total <= limit or not sample.sizes:
                continue
            text = total - sum(len(p.ids) for p in sample.planned)
            for level in range(1, len(self._planner.policies)):
                try:
                    planned = [self._planner.plan(*size, len(sample.sizes), level) for size in sample.sizes]
                except DataError:
                    break
                if text + sum(len(p.ids) for p in planned) <= limit:
                    sample.planned, changed = planned, True
                    break
        return replan(pieces, samples) if changed else pieces

    def _documents(
        self, number: int, sample: Sample, total: int, pieces: Pieces, dropped: _Dropped, group: pa.RecordBatch
    ) -> list[Output]:
        """What is written of a sample: nothing, one document, or several."""
        settings = self._settings
        here = pieces.of(number)
        bare = total - len(self._rules.before) - len(self._rules.after) if not sample.chat else total
        if bare <= 0:
            dropped.row("empty", sample.row)
            return []
        candidates: list[Output] = [Output(number, None)]
        if settings.max_length is not None and total > settings.max_length:
            if settings.over_long == "error":
                raise DataError(
                    f"a sample is longer than max_length: it has {total} tokens, the limit is {settings.max_length}",
                    where=place_of(group, sample.row),
                    hint="choose over_long= of tokenize_interleaved: drop, truncate, split or fit_images",
                )
            if settings.over_long in ("drop", "fit_images"):
                dropped.row("over-long", sample.row, total)
                return []
            candidates = self._cut(number, sample, pieces)
        kept = [c for c in candidates if settings.train_on == "none" or sample.blank or _trains(c, pieces, here.start)]
        if not kept:
            dropped.row(_UNTRAINED, sample.row, total)
            return []
        if candidates[0].cuts is not None:
            # BOS and EOS of further documents were not there before
            frame = (len(self._rules.before) + len(self._rules.after)) * (len(candidates) - 1) if not sample.chat else 0
            dropped.cut(sample.row, total + frame, candidates, kept, pieces)
        return kept

    def _cut(self, number: int, sample: Sample, pieces: Pieces) -> list[Output]:
        here = pieces.of(number)
        limit = self._settings.max_length
        assert limit is not None
        kinds, lengths = pieces.kinds[here].tolist(), pieces.lengths[here].tolist()
        if sample.chat:
            return [Output(number, cut_chat(kinds, lengths, sample.script.turns, limit))]
        split = self._settings.over_long == "split"
        return [Output(number, cuts) for cuts in cut_document(kinds, lengths, limit, split=split)]


def _check_types(schema: pa.Schema) -> None:
    """Raise `RecipeError` where what `interleave` and `probe_images` make is of another type."""
    columns.check_type(schema, columns.SEGMENTS, columns.SEGMENTS_TYPE, "interleave() makes them")
    columns.check_type(schema, columns.IMAGE_INFO, _INFO, "probe_images() makes it")
    if schema.get_field_index(columns.IMAGES) >= 0:
        check_image_lists(schema.field(columns.IMAGES).type, columns.IMAGES)


_INFO: Any = pa.list_(pa.struct([columns.INFO.field(name) for name in ("height", "width", "error")]))


def _trains(output: Output, pieces: Pieces, first: int) -> bool:
    """Whether any text is trained in it; a BOS or EOS alone is nothing to learn from."""
    if output.cuts is None:
        here = pieces.of(output.sample)
        return bool(pieces.trained[here].any())
    for piece, start, stop in output.cuts:
        place = first + piece
        if pieces.trained[place]:
            begin = int(pieces.starts[place])
            if pieces.mask[begin + start : begin + stop].any():
                return True
    return False


class _Dropped:
    """What was left out of a group."""

    def __init__(self, group: pa.RecordBatch) -> None:
        self._component = components_of(group)
        self._rows: dict[str, list[int]] = {}
        self._tokens: dict[str, dict[int, int]] = {}
        self.images = LostImages(group)

    @property
    def drops(self) -> Drops:
        rows = {reason: np.array(rows, dtype=np.int64) for reason, rows in self._rows.items()}
        return Drops(rows, self._tokens, parts=self.images.parts)

    def row(self, reason: str, row: int, tokens: int = 0) -> None:
        self._rows.setdefault(reason, []).append(row)
        self.tokens(reason, row, tokens)

    def cut(self, row: int, total: int, candidates: list[Output], kept: list[Output], pieces: Pieces) -> None:
        """A sample of `total` tokens was cut into `candidates`, of which some were `kept`."""
        chosen = {id(c) for c in kept}
        shows = (pieces.kinds[pieces.of(candidates[0].sample)] == IMAGE).tolist()
        tokens, images = [0, 0], [0, 0]
        for output in candidates:
            is_kept = id(output) in chosen
            for piece, start, stop in output.cuts or ():
                tokens[is_kept] += stop - start
                images[is_kept] += shows[piece]
        self.tokens(_UNTRAINED, row, tokens[False])
        self.tokens("truncated", row, max(0, total - sum(tokens)))
        self.images.add(row, _UNTRAINED, images[False])
        self.images.add(row, "truncated", sum(shows) - sum(images))

    def tokens(self, reason: str, row: int, tokens: int) -> None:
        if tokens:
            sums = self._tokens.setdefault(reason, {})
            sums[self._component[row]] = sums.get(self._component[row], 0) + tokens
