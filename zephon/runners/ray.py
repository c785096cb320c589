"""Tasks on a Ray cluster: for decoding and tokenising beyond one machine.

A group travels as one block of bytes in Arrow's own layout, which Ray's object store keeps outside of any pickle: it is copied into
shared memory once, and read there in place. Ray decides where a task runs, and runs it again when its worker or node is lost; stages
are stateless, so a task that ran twice gives the same bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import pickle
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import ray

from zephon.errors import RecipeError, RunnerError, Where, unknown
from zephon.runners.arena import read, write
from zephon.runners.base import StageSpec
from zephon.runners.pool import Pool, PooledRunner, Task
from zephon.runners.sending import pickled_stage
from zephon.runners.worker import STOPS, BoundStages, fail, load_stages, ours, pickled_error, pickled_word, succeed

Message = npt.NDArray[np.uint8]

_RETRIES = 3
"""How often a task is run again after its worker or node was lost. A record that crashes its worker each time must end the run."""
_KEPT = 4
"""Pipelines whose bound stages (tokenizers, decoders) a worker keeps: training and evaluation take turns on the same workers."""
_AMOUNTS = ("num_cpus", "num_gpus", "memory")


class Ray(PooledRunner):
    """Runs tasks on the Ray cluster that this process is connected to; else on the one that `ray.init()` finds, or starts.

    Args:
        workers: how many tasks the engine keeps going; None: one per core of the cluster.
        resources: by operator, what its tasks ask of the cluster (as `ray.remote` takes it). A stage asks for the most of any of its
            operators.
    """

    def __init__(self, workers: int | None, resources: Mapping[str, Mapping[str, Any]]) -> None:
        super().__init__(workers or 1)
        self._given = workers
        self._resources = resources

    def open(self, stages: Sequence[StageSpec]) -> _Cluster:
        """Connect, where this process isn't connected yet.

        Raises:
            RunnerError: a stage can't be pickled, there is no cluster, or none of its nodes has what an operator asks for.
            RecipeError: resources are asked for an operator that isn't there.
        """
        pickles = [(stage.name, pickled_stage(stage)) for stage in stages]
        asked = [_asked(stage.name.split("+"), self._resources) for stage in stages]
        _check_names(self._resources, [name for stage in stages for name in stage.name.split("+")])
        own = not ray.is_initialized()
        if own:
            try:
                ray.init(logging_level=logging.WARNING)
            except Exception as error:
                raise RunnerError(
                    f"no Ray cluster: {type(error).__name__}: {error}",
                    hint="see ray.init(address=…), or the variable RAY_ADDRESS",
                ) from error
        try:
            for stage, demand in zip(stages, asked, strict=True):
                _check_nodes(stage.name, demand)
            if self._given is None:
                self.workers = max(1, int(_cluster("cluster_resources").get("CPU", 1)))
            return _Cluster(stages, pickles, asked, own)
        except BaseException:
            if own:
                ray.shutdown()
            raise


def _asked(operators: Sequence[str], resources: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What a stage of these operators asks for: one core, where none of them says otherwise."""
    made: dict[str, Any] = {}
    for operator in operators:
        for name, value in resources.get(operator, {}).items():
            if name == "resources":
                before = made.get(name, {})
                made[name] = {**before, **{kind: max(amount, before.get(kind, 0)) for kind, amount in value.items()}}
            else:
                made[name] = max(value, made.get(name, 0)) if name in _AMOUNTS else value
    return {"num_cpus": 1, "max_retries": _RETRIES, **made}


def _check_names(resources: Mapping[str, Any], operators: Sequence[str]) -> None:
    for name in resources:
        if name not in operators:
            raise RecipeError(
                unknown("operator in resources", name, operators),
                hint="only operators whose work is done on workers ask for any (explain() lists them)",
            )


def _check_nodes(stage: str, asked: Mapping[str, Any]) -> None:
    """Ray would wait for ever for a node that has enough."""
    wanted = {"CPU": asked.get("num_cpus", 0), "GPU": asked.get("num_gpus", 0), "memory": asked.get("memory", 0)}
    wanted |= asked.get("resources", {})
    nodes = [node["Resources"] for node in _cluster("nodes") if node["Alive"]]
    if any(all(node.get(name, 0) >= amount for name, amount in wanted.items() if amount) for node in nodes):
        return
    needs = ", ".join(f"{name} {amount:g}" for name, amount in wanted.items() if amount)
    raise RunnerError(
        f"none of the cluster's {len(nodes)} nodes has what {stage!r} asks for: {needs}",
        hint="lower it in options(resources=…); where the cluster grows by need, have such a node started first "
        "(ray.autoscaler.sdk.request_resources)",
    )


def _cluster(question: str) -> Any:
    """What Ray answers; these functions have no type information."""
    return getattr(ray, question)()


def _buffer(message: Any) -> pa.Buffer:
    """The memory of a message, which lives as long as the buffer."""
    return pa.py_buffer(message)


class _Cluster(Pool):
    """The tasks that Ray was given. There is no thread of ours: results come back in one of Ray's."""

    def __init__(
        self, stages: Sequence[StageSpec], pickles: list[tuple[str, bytes]], asked: Sequence[Mapping[str, Any]], own: bool
    ) -> None:
        super().__init__()
        self._names = [stage.name for stage in stages]
        self._own = own
        self._running: dict[Any, Task] = {}
        path = [entry for entry in sys.path if isinstance(entry, str)]
        sent = pickle.dumps((path, pickles, [stage.fingerprint for stage in stages]))
        self._key = hashlib.sha256(sent).hexdigest()
        self._stages = ray.put(sent)
        remote = ray.remote(run_task)
        self._calls = [remote.options(name=f"zephon {name}", **demand) for name, demand in zip(self._names, asked, strict=True)]

    def add(self, task: Task) -> None:
        if self.refused(task):
            return
        try:
            sink = pa.BufferOutputStream()
            write(sink, (task.stage, task.note), task.groups)
            message = np.frombuffer(memoryview(sink.getvalue()), np.uint8)
            if not task.future.set_running_or_notify_cancel():
                return
            # in a list, Ray hands the reference on and not what it refers to: only a worker that is new to it asks for it
            ref = self._calls[task.stage].remote(self._key, [self._stages], message)
        except Exception as error:
            fail(task.future, ours(error, Where(operator=self._names[task.stage])))
            return
        task.groups = ()  # the memory is the message's now
        self._running[ref] = task
        ref.future().add_done_callback(lambda done: self._done(ref, done))
        if self._closing:  # since just now
            self._give_up()

    def resize(self, workers: int) -> None:
        """Ray runs what there is room for; how much it is given at a time, the engine decides."""

    def close(self) -> None:
        """Give up what runs; disconnect, where this connected."""
        if self._owner != os.getpid():
            return
        self._closing = True
        self._give_up()
        own, self._own = self._own, False
        if own:
            ray.shutdown()

    def _give_up(self) -> None:
        for ref, task in list(self._running.items()):
            self._running.pop(ref, None)
            fail(task.future, RunnerError(f"the runner was closed while Ray did {task.label!r}"))
            with contextlib.suppress(Exception):  # it ended just now, or Ray was shut down before
                if ray.is_initialized():
                    ray.cancel(ref, force=True)

    def _done(self, ref: Any, done: Any) -> None:
        task = self._running.pop(ref, None)
        if task is None:
            return
        try:
            (note, failure), groups = read(_buffer(done.result()))
            error = None if failure is None else pickle.loads(failure)
        except Exception as lost:
            error = self._obituary(task, lost)
        if error is None:
            succeed(task.future, (groups, note))
        else:
            fail(task.future, error)

    def _obituary(self, task: Task, error: Exception) -> RunnerError:
        """What became of a task that Ray gave up."""
        what = f"while it ran {self._names[task.stage]!r} [{task.label}]"
        if isinstance(error, ray.exceptions.WorkerCrashedError):
            return RunnerError(
                f"a Ray worker died {what}, {_RETRIES + 1} times, if max_retries is as it was",
                hint="a library crashed, or memory ran out: see the worker's log in the folder of the Ray session",
            )
        if isinstance(error, ray.exceptions.OutOfMemoryError):
            return RunnerError(
                f"a Ray worker ran out of memory {what}", hint="lower max_bytes, or ask for `memory` in resources"
            )
        first = (str(error).strip().splitlines() or [""])[0]
        return RunnerError(
            f"Ray lost a task {what}: {type(error).__name__}: {first}",
            hint="every node needs the same Python, Zephon and user's modules: see ray.init(runtime_env=…)",
            trace=ours(error, Where()).trace,
        )


# ---- what follows runs in Ray's workers

_BOUND: dict[str, BoundStages] = {}
"""By the hash of a pipeline's stages. Ray's workers keep nothing else from one task to the next than modules; each runs one task at
a time, in one thread."""


def run_task(key: str, stages: list[Any], message: Message) -> Message:
    """One task in a worker of Ray's: `(stage, note)` and groups in, `(note, failure)` and groups out."""
    head: tuple[Any, bytes | None]
    try:
        bound = _BOUND.get(key) or _bind(key, stages)
        (stage, note), given = read(_buffer(message))
        made, reply = bound.run(stage, given, note)
        head = reply, None
        return _message(head, made)
    except STOPS as word:
        return _message((None, pickled_word(word)), [])
    except Exception as error:
        return _message((None, pickled_error(error)), [])


def _message(head: Any, groups: Sequence[pa.RecordBatch]) -> Message:
    sink = pa.BufferOutputStream()
    write(sink, head, groups)
    return np.frombuffer(memoryview(sink.getvalue()), np.uint8)


def _bind(key: str, stages: list[Any]) -> BoundStages:
    # Ray sets OMP_NUM_THREADS to the cores that a task asked for: the other libraries' pools follow
    threads = os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("RAYON_NUM_THREADS", threads)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false" if threads == "1" else "true")
    pa.set_cpu_count(max(1, int(threads) if threads.isdigit() else 1))
    path, pickles, fingerprints = pickle.loads(ray.get(stages[0]))
    # Ray knows the folder of the program, and not what the program added; where nodes differ, a folder that isn't there does no harm
    sys.path += [entry for entry in path if entry not in sys.path]
    made = load_stages(pickles)
    for stage, sent in zip(made, fingerprints, strict=True):
        if stage.fingerprint != sent:
            raise RunnerError(
                f"stage {stage.name!r} changed on its way to a Ray worker: its fingerprint is {sent} here and {stage.fingerprint} there",
                hint="an object in it loses a field when it is pickled (see its __reduce__), or the node has another version of a package",
            )
    while len(_BOUND) >= _KEPT:
        del _BOUND[next(iter(_BOUND))]
    _BOUND[key] = BoundStages(made)
    return _BOUND[key]
