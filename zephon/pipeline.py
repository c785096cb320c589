"""Pipeline: a source, operators, batches; iterate, checkpoint, restore."""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any

import pyarrow as pa

from zephon import groups
from zephon.batch import Batch
from zephon.checks import whole_or_none
from zephon.compat import OPERATOR_NAMES, OPTION_NAMES, chat_steps, check_mixture, translate_options, translate_settings
from zephon.compose import Settled, make_definition, read_exclusions, settle
from zephon.dataset import Dataset
from zephon.engine.faults import POLICIES, Policy
from zephon.engine.run import Definition, Run
from zephon.engine.state import LaneState, load_state, make_state, merge_states, padding_total, stated_padding
from zephon.errors import CheckpointError, RecipeError, unknown
from zephon.exchange import exchange_states
from zephon.options import Options
from zephon.plan.mixture import MixtureSpec
from zephon.plan.source import StaticMixtureWorkSource
from zephon.plugin import Collates, Operator
from zephon.registry import available, load
from zephon.report import explain, stats_report
from zephon.runners import BIND_HERE, make_runner
from zephon.runners.base import Runner
from zephon.training import collator_options


class Pipeline:
    """A source and the steps after it. Builders change the pipeline in place and return it; nothing runs before `next()`.

    `pipeline.NAME(**settings)` adds the operator that is registered as NAME (`zephon plugins` lists them): one look-up for ours and
    everybody's. `on_error=` may be given with every operator.

    Iterating gives `Batch` objects: from the restored state if `restore` was called since the last iteration, else from the beginning.

    Raises:
        RecipeError: `source` is neither a source nor a data set; later, a setting, an option or an order of steps that doesn't fit.
    """

    def __init__(self, source: StaticMixtureWorkSource | Dataset) -> None:
        if not isinstance(source, StaticMixtureWorkSource | Dataset):
            raise RecipeError(
                f"a pipeline takes a source or a data set, got {type(source).__name__}",
                hint="several data sets: StaticMixtureWorkSource(datasets, mixture)",
            )
        self.source = source if isinstance(source, StaticMixtureWorkSource) else StaticMixtureWorkSource([source])
        self._steps: list[tuple[Operator, Policy | None]] = []
        self._options = Options()
        self._batch: dict[str, Any] = {}
        self._batch_functions: list[Callable[[Batch], Any]] = []
        self._restored: dict[str, Any] | None = None
        self._settled: Settled | None = None
        self._last: Run | None = None
        self._live: weakref.ref[Run] | None = None

    # --------------------------------------------------------------------------------------------------- building

    def then(self, operator: Operator, *, on_error: Policy | None = None) -> Pipeline:
        """Add an operator object. Raises `RecipeError` where it isn't one, or comes after `batch`."""
        if not isinstance(operator, Operator):
            raise RecipeError(
                f"then() takes an operator, got {type(operator).__name__}", hint="for a function use map, filter or map_batches"
            )
        if on_error is not None and on_error not in POLICIES:
            raise RecipeError(unknown("on_error policy", str(on_error), POLICIES))
        if self._batch:
            raise RecipeError(
                f"operator {operator.name!r} comes after batch()",
                hint="batch() is the last step; use map_batch for whole batches",
            )
        self._steps.append((operator.after([op for op, _ in self._steps]), on_error))
        self._settled = None
        return self

    def __getattr__(self, name: str) -> Callable[..., Pipeline]:
        if name.startswith("_"):
            raise AttributeError(name)
        ours = OPERATOR_NAMES.get(name, name)
        if ours not in available("zephon.operators"):
            known = [*available("zephon.operators"), *OPERATOR_NAMES, *(n for n in dir(type(self)) if not n.startswith("_"))]
            raise AttributeError(unknown("pipeline method or operator", name, known))

        def add(*values: Any, on_error: Policy | None = None, **settings: Any) -> Pipeline:
            operator = load("zephon.operators", ours)
            return self.then(make_operator(operator, values, translate_settings(ours, settings)), on_error=on_error)

        add.__name__ = name
        return add

    def batch(
        self,
        microbatch_size: int = 1,
        global_batch_size: int | None = None,
        *,
        drop_last: bool | None = None,
    ) -> Pipeline:
        """Cut into microbatches of one lane each; the last step.

        Args:
            microbatch_size: sequences per batch.
            global_batch_size: sequences per step over all lanes; default: lanes * microbatch_size. Microbatch size and gradient
                accumulation may change at a restore as long as the sequences per lane and step stay the same.
            drop_last: True: the run ends, on all ranks, before the first step that some lane can't fill, and what is left in the lanes
                is dropped and counted (with `max_steps` alone, which ends nothing early: lane by lane). Default: all is delivered,
                filled up with empty sequences (or, where rows have no fixed layout, in shorter batches and batches of no rows).

        Raises:
            RecipeError: a size below 1.
        """
        self._batch = {
            "microbatch": whole_or_none("microbatch_size", microbatch_size, least=1) or 1,
            "global": whole_or_none("global_batch_size", global_batch_size, least=1),
            "drop_last": bool(drop_last),
        }
        self._settled = None
        return self

    def map_batch(self, function: Callable[[Batch], Any]) -> Pipeline:
        """Apply a function to every finished batch, in the consumer's thread."""
        self._batch_functions.append(function)
        return self

    def prefetch(self, buffer_size: int | None = None, parallelism: int | None = None) -> Pipeline:
        """How much is read ahead: microbatches held ready, and reads at once."""
        changes = {"prefetch_batches": buffer_size, "fetch_parallelism": parallelism}
        return self.options(**{k: v for k, v in changes.items() if v is not None})

    def fetch_parallelism(self, count: int) -> Pipeline:
        """Reads at once."""
        return self.options(fetch_parallelism=count)

    def options(self, **changes: Any) -> Pipeline:
        """Set options (see `zephon.options.Options`); calls accumulate, the later one wins. Unknown names are an error."""
        self._options = self._options.updated(translate_options(changes), OPTION_NAMES)
        self._settled = None
        return self

    def tokenize_chat(self, *, on_error: Policy | None = None, **settings: Any) -> Pipeline:
        """Chats to token ids and loss masks, one row each: `interleave` and `tokenize_interleaved`, whose settings it takes.

        `field`: the column of the chats (default: by name and type). Longer ones than `max_length` are cut after the last answer that
        fits, unless `over_long` says otherwise.
        """
        for name, given in chat_steps(settings):
            getattr(self, name)(**given, on_error=on_error)
        return self

    def ensure_mixture(self, mixture: MixtureSpec | Mapping[str, float] | None = None) -> Pipeline:
        """Nothing to do, since a source keeps its mixture by itself, in every prefix of a lane and over the lanes of a step.

        Raises:
            RecipeError: `mixture` is given and isn't the source's.
        """
        if mixture is not None:
            for phase in self.source.mixture.all_phases():
                check_mixture(mixture, phase.weights)
        return self

    @property
    def ws(self) -> StaticMixtureWorkSource:
        """The source."""
        return self.source

    # --------------------------------------------------------------------------------------------------- settled

    def _datasets(self) -> list[Dataset]:
        datasets: list[Any] = list(self.source.datasets)
        if self._options.exclude is not None:
            excluded = read_exclusions(self._options.exclude, [d.name for d in datasets])
            datasets = [d.excluding(excluded[d.name]) if d.name in excluded else d for d in datasets]
        if self._options.io_options is not None:
            for dataset in datasets:
                dataset.use_io_options(self._options.io_options)
        return datasets

    def _settle(self) -> Settled:
        """Everything filled in; made once for as long as nothing is added or set, since states ask for it each time."""
        _check_ranks(self._options)
        if self._settled is None:
            self._settled = self._settle_anew()
        return self._settled

    def _settle_anew(self) -> Settled:
        options = self._options
        lanes = options.lane_count
        microbatch, total = self._batch.get("microbatch", 1), self._batch.get("global")
        if total is not None and total % lanes:
            raise RecipeError(f"global_batch_size {total} does not divide by {lanes} lanes")
        per_step = microbatch if total is None else total // lanes
        if per_step % microbatch:
            raise RecipeError(f"{per_step} sequences per lane and step don't divide into microbatches of {microbatch}")
        datasets = self._datasets()
        steps = settle(self._steps, datasets, options.on_error)
        if options.quarantine is None and "quarantine" in (options.on_error, *(policy for _, policy in steps)):
            raise RecipeError('on_error="quarantine" needs a file to write to', hint="set options(quarantine=PATH)")
        cutting = {"per_step": per_step, "microbatch": microbatch, "drop_last": self._batch.get("drop_last", False)}
        return Settled(self.source, datasets, steps, options, cutting)

    def recipe(self) -> dict[str, Any]:
        """All that determines the bytes, as plain values; reads metadata only."""
        return dict(self._settle().recipe)

    def preflight_tokenizers(self) -> Pipeline:
        """Load every tokenizer now, to fail now; no iteration."""
        for op, _ in self._settle().steps:
            if hasattr(op, "token_column"):
                op.bind()
        return self

    # -------------------------------------------------------------------------------------------------- iterating

    def __iter__(self) -> Iterator[Any]:
        return self._iterate()

    def _iterate(self) -> Iterator[Any]:
        run = self._make_run()
        definition = run.definition
        self._last, self._live, self._restored = run, weakref.ref(run), None
        names = tuple(d.name for d in definition.datasets)
        defaults = batch_defaults([op for level in definition.levels for op, _ in level.stage.steps], definition)
        schema = definition.schema or pa.schema([])
        shown = run.fetcher.made_schema if run.shows else None
        try:
            run.start()
            for made in run.deliveries():
                group = groups.empty_group(schema) if made.group is None else made.group
                kinds = None if made.group is None else shown
                schema = kinds or group.schema
                batch: Any = Batch(
                    group,
                    lane=made.lane,
                    step=made.step,
                    index=made.microbatch,
                    empty=made.empty,
                    dataset_names=names,
                    defaults=defaults,
                    kinds=kinds,
                )
                for function in self._batch_functions:
                    batch = function(batch)
                yield batch
                if self._live is None or self._live() is not run:
                    raise CheckpointError(
                        "this iterator is over: the pipeline was restored or iterated again", hint="take iter(pipeline) anew"
                    )
        finally:
            run.close()

    def _make_run(self) -> Run:
        self._settled = None  # an `exclude` file may have grown since
        if self._options.runner in BIND_HERE:
            for op, _ in self._steps:
                op.prepare()
        settled = self._settle()
        start = {lane: LaneState() for lane in settled.owned}
        padding = 0
        if self._restored is not None:
            start = load_state(self._restored, recipe=settled.recipe, owned=settled.owned)
            padding = padding_total(start, stated_padding(self._restored, settled.owned), settled.cutting["per_step"])
            self._adopt(self._restored)
        definition = make_definition(settled)
        options = definition.options

        def runner() -> Runner:
            return make_runner(options.runner, workers=options.runner_workers, resources=options.resources)

        return Run(definition, start, runner, padding=padding)

    def _adopt(self, state: Mapping[str, Any]) -> None:
        if self.source.token_estimation is not None and state.get("tokens_per_record"):
            self.source.prime(state["tokens_per_record"])

    # ------------------------------------------------------------------------------------------------ checkpoints

    def checkpoint(self) -> dict[str, Any]:
        """The state of this rank's lanes after the batches that were delivered so far; plain values.

        With `aggregate_dir` it is the merged state of all ranks, exchanged through that folder.
        """
        if self._restored is None and self._last is not None:
            definition, options = self._last.definition, self._last.definition.options
            recipe, tokens, per_step = definition.recipe, definition.tokens_per_record, definition.cut.per_step
            lanes, padding = dict(self._last.lane_states), self._last.padding
        else:
            settled = self._settle()
            options, recipe, per_step = settled.options, settled.recipe, settled.cutting["per_step"]
            lanes, padding, tokens = {lane: LaneState() for lane in settled.owned}, 0, self.source.tokens_per_record
            if self._restored is not None:
                lanes = load_state(self._restored, recipe=recipe, owned=settled.owned)
                padding = padding_total(lanes, stated_padding(self._restored, settled.owned), per_step)
                tokens = self._restored.get("tokens_per_record") or tokens
        pads = options.owned_lanes()[1]
        state = make_state(recipe=recipe, lanes=lanes, tokens_per_record=tokens, padding=padding if pads else None)
        if options.aggregate_dir is not None:
            position = sum(lane.total for lane in lanes.values()) + pads * padding
            state = merge_states(exchange_states(state, options, position=position))
        return state

    def restore(self, state: Mapping[str, Any]) -> Pipeline:
        """Start the next iteration where `state` was taken, on any number of ranks. The state may be one rank's or a merge.

        Raises:
            CheckpointError: not a state, of another recipe (with what differs), or a lane of this rank is missing.
        """
        settled = self._settle()
        lanes = load_state(state, recipe=settled.recipe, owned=settled.owned)
        _warn_uneven(lanes, settled.cutting["per_step"], stated_padding(state, settled.owned))
        self._restored = dict(state)
        self._adopt(state)
        self._live = None
        return self

    def state_dict(self) -> dict[str, Any]:
        """`checkpoint()`, under the name that torch uses."""
        return self.checkpoint()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """`restore()`, under the name that torch uses."""
        self.restore(state)

    # ---------------------------------------------------------------------------------------------------- reports

    def accounting(self) -> dict[str, Any]:
        """Rows and tokens in, out and dropped by reason, per data set, of the last iteration in this process.

        `in + added = out + replayed + sum(dropped.values()) + in_flight`; after the end of a finite run nothing is in flight.
        What a packer adds or leaves out without a word of its own (pads that align documents) is known when its window ends: until then
        it is in flight, or, as far as more went out than came in, added. Raises `RecipeError` where nothing has run yet.
        """
        if self._last is None:
            raise RecipeError("nothing has run yet", hint="accounting() reports on the last iteration")
        return self._last.accounting()

    def explain(self) -> str:
        """The pipeline in words: data sets, shares, steps, stages, lanes, and what the last iteration waited for; reads metadata only."""
        settled = self._settle()
        return explain(settled.source, settled.datasets, settled.steps, settled.options, settled.cutting, self._last)

    def stats(self) -> dict[str, Any]:
        """What the last iteration has done so far: bytes held, units read, sequences, padding, times, and the bottleneck in a sentence.

        An empty dict where nothing has run yet.
        """
        return {} if self._last is None else stats_report(self._last)

    def to_torch_dataset(self, stateful: bool = True) -> Any:
        """A `torch.utils.data.IterableDataset` of this pipeline's batches."""
        from zephon.integrations.torch import make_torch_dataset  # noqa: PLC0415 - torch is imported only where it is asked for

        return make_torch_dataset(self, stateful=stateful)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_last": None, "_live": None, "_settled": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def __repr__(self) -> str:
        steps = "".join(f".{op.name}(…)" for op, _ in self._steps)
        return f"Pipeline({', '.join(d.name for d in self.source.datasets)}){steps}"


def make_operator(operator: type[Operator], values: tuple[Any, ...], settings: dict[str, Any]) -> Operator:
    """An operator from its class and settings; positional values fill the fields in their order.

    Raises:
        RecipeError: a setting is unknown, missing, given twice, or doesn't fit.
    """
    names = [f.name for f in fields(operator) if f.init]
    if len(values) > len(names):
        raise RecipeError(f"operator {operator.name!r} takes at most {len(names)} settings, got {len(values)}")
    for name, value in zip(names, values, strict=False):
        if name in settings:
            raise RecipeError(f"operator {operator.name!r}: {name} is given twice")
        settings[name] = value
    for name in settings:
        if name not in names:
            raise RecipeError(unknown(f"setting of operator {operator.name!r}", name, names))
    try:
        return operator(**settings)
    except TypeError as error:
        raise RecipeError(f"operator {operator.name!r}: {error}") from error


def batch_defaults(stateless: list[Operator], definition: Definition) -> dict[str, Any]:
    """Pad and EOS ids, as far as the operators know them."""
    found: dict[str, Any] = {}
    every = [*stateless, *(op for level in definition.levels for op in level.deciders)]
    for op in every:
        if hasattr(op, "special_ids"):
            found.update({k: v for k, v in op.special_ids().items() if v is not None})
        if getattr(op, "pad_token_id", None) is not None:
            found["pad_token_id"] = op.pad_token_id  # type: ignore[attr-defined]
        if getattr(op, "token_columns", None):
            found["token_columns"] = op.token_columns  # type: ignore[attr-defined]
    in_order = [op for level in definition.levels for op in (*level.deciders, *(op for op, _ in level.stage.steps))]
    found["collators"] = tuple(op for op in in_order if isinstance(op, Collates))
    found["collator_options"] = collator_options(found["collators"])
    return found


def _check_ranks(options: Options) -> None:
    """Raises `RecipeError` where several ranks would silently read the same data."""
    if options.dp_size is not None or (options.lanes is None and options.dp_rank is not None):
        return
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None) if torch is not None else None
    if (
        distributed is not None
        and distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    ):
        raise RecipeError(
            f"torch.distributed has {distributed.get_world_size()} ranks, but this pipeline was not told its data-parallel rank",
            hint="set options(dp_rank=…, dp_size=…); ranks that share data (tensor or pipeline parallel) have the same dp_rank",
        )


def _warn_uneven(lanes: Mapping[int, LaneState], per_step: int, padding: int | None) -> None:
    steps = {state.total for state in lanes.values()} | {padding_total(lanes, padding, per_step)}
    if len(steps) > 1:
        warnings.warn(
            "this state was taken mid-window: inside a step, when some lanes had delivered more than others; "
            "it resumes exactly on the same number of ranks",
            stacklevel=3,
        )
