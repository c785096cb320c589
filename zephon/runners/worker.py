"""What a worker does: binds each stage at its first task, runs tasks, and turns whatever is raised into our errors."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from queue import SimpleQueue
from threading import Thread
from typing import Any

import cloudpickle
import pyarrow as pa

from zephon.errors import DataError, RunnerError, Where, ZephonError, trace_of, wrap
from zephon.runners.arena import Channel, Parcel, pack, unpack
from zephon.runners.base import Groups, StageSpec, Work

_GRACE_S = 2.0
"""After the parent has gone: how long an idle worker may take for its exit handlers, and how often the parent is looked for."""
STOPS = (KeyboardInterrupt, SystemExit)
"""What user code raises to end the program, not to say that a record is bad: it reaches the consumer as it is."""
QUIET = (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that terminals and schedulers send to every process of a job: what they mean is the parent's decision."""


class BoundStages:
    """Stages and their bound functions, for one worker (a thread or a process)."""

    def __init__(self, stages: Sequence[StageSpec]) -> None:
        self._stages = stages
        self._bound: dict[int, Work] = {}

    def run(self, stage: int, groups: Groups, note: Any) -> tuple[Groups, Any]:
        """Run one task.

        Raises:
            ZephonError: the task or the binding failed; foreign exceptions are wrapped, with their traceback as text.
            KeyboardInterrupt, SystemExit: as they are.
        """
        try:
            work = self._bound.get(stage)
            if work is None:
                work = self._bound[stage] = self._stages[stage].bind()
            return work(groups, note)
        except STOPS:
            raise
        except BaseException as error:
            made = ours(error, Where(operator=self._stages[stage].name))
            if made is error:
                raise
            raise made from error


def ours(error: BaseException, where: Where) -> ZephonError:
    """`error` as a `ZephonError` with the traceback as text, also when its own `str` fails."""
    try:
        made = wrap(error, where)
    except Exception:
        made = DataError(f"{type(error).__name__}: (its message can't be shown)", where=where)
    if not made.trace:
        made.trace = trace_of(error)
    return made


def succeed(future: Future[Any], result: Any) -> None:
    """Give the future its result, unless it is done (closing may have given up on it)."""
    with contextlib.suppress(InvalidStateError):
        future.set_result(result)


def fail(future: Future[Any], error: ZephonError | KeyboardInterrupt | SystemExit) -> None:
    """Make the future fail, unless it is done."""
    with contextlib.suppress(InvalidStateError):
        future.set_exception(error)


def cancel(future: Future[Any]) -> None:
    """Cancel a future whose task hasn't begun, so that `concurrent.futures.wait` notices, too."""
    if future.cancel():
        future.set_running_or_notify_cancel()


def main(index: int, descriptor: int, parent: int) -> None:
    """A worker process: takes tasks from the socket `descriptor` until the other end goes away."""
    for quiet in QUIET:
        signal.signal(quiet, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, QUIET)  # blocked by the parent until now
    if sys.stderr is not None:
        faulthandler.enable()
    os.set_inheritable(descriptor, False)
    del sys.argv[1:]  # ours, and no business of libraries that parse it
    pa.set_cpu_count(1)
    channel = Channel(socket.socket(fileno=descriptor))
    listener = _Listener(channel, parent)
    Thread(target=listener.listen, name=f"zephon-worker-{index}-listener", daemon=True).start()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the parent has gone
        _serve(channel, listener)
    # Exit handlers run now. If one hangs, the kernel ends this process: nothing here may outlive the parent.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(int(_GRACE_S))


class _Listener:
    """The thread that always reads the socket: so the parent's sends never block, and its end is seen during a task."""

    def __init__(self, channel: Channel, parent: int) -> None:
        self.inbox: SimpleQueue[Parcel | None] = SimpleQueue()
        self.busy = False
        self._channel = channel
        self._parent = parent

    def listen(self) -> None:
        try:
            self._until_the_end()
        except Exception:
            traceback.print_exc()
            os._exit(1)
        if self.busy or not self.inbox.empty():
            os._exit(0)  # nobody waits for the result
        self.inbox.put(None)
        time.sleep(_GRACE_S)
        os._exit(0)

    def _until_the_end(self) -> None:
        poll = select.poll()
        poll.register(self._channel.socket, select.POLLIN)
        while os.getppid() == self._parent:  # a fork of the parent may hold the other end open
            if poll.poll(_GRACE_S * 1000):
                parcels = self._channel.receive()
                if parcels is None:
                    return
                for parcel in parcels:
                    self.inbox.put(parcel)


def _serve(channel: Channel, listener: _Listener) -> None:
    first = listener.inbox.get()
    if first is None:
        return
    listener.busy = True
    try:
        stages = load_stages(unpack(first)[0])
        channel.send(pack(([stage.fingerprint for stage in stages], None), []))
    except BaseException as error:
        channel.send(_failure(error))
        return
    finally:
        listener.busy = False
    bound = BoundStages(stages)
    while (task := listener.inbox.get()) is not None:
        listener.busy = True
        channel.send(_answer(bound, task))
        del task
        _flush()
        listener.busy = False


def _flush() -> None:
    """What a task printed must not wait for an exit that may be sudden."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # there is none, nobody reads it, a task closed it
            stream.flush()


def load_stages(pickles: Sequence[tuple[str, bytes]]) -> list[StageSpec]:
    """The stages, from their names and what `pickled_stage` made of them. Raises `RunnerError` naming the one that can't be loaded."""
    stages: list[StageSpec] = []
    for name, pickled in pickles:
        try:
            stages.append(pickle.loads(pickled))
        except ModuleNotFoundError as error:
            hint = f"put the folder of {error.name!r} on sys.path, or call cloudpickle.register_pickle_by_value with the module"
            raise RunnerError(f"stage {name!r} can't be loaded in a worker: {error}", hint=hint) from error
        except Exception as error:
            raise RunnerError(f"stage {name!r} can't be loaded in a worker: {type(error).__name__}: {error}") from error
    return stages


def _answer(bound: BoundStages, task: Parcel) -> Parcel:
    try:
        (stage, note), groups = unpack(task)
        made, reply = bound.run(stage, groups, note)
        return pack((reply, None), made)
    except STOPS as word:
        return pack((None, pickled_word(word)), [])
    except BaseException as error:
        return _failure(error)


def _failure(error: BaseException) -> Parcel:
    return pack((None, pickled_error(error)), [])


def pickled_word(word: BaseException) -> bytes:
    """One of `STOPS`, pickled, without what may be in it and can't be."""
    if isinstance(word, SystemExit):
        return pickle.dumps(SystemExit(word.code if isinstance(word.code, int | str | None) else 1))
    return pickle.dumps(KeyboardInterrupt())


def pickled_error(error: BaseException) -> bytes:
    """`error` as one of ours, pickled."""
    made = ours(error, Where())
    try:
        return bytes(cloudpickle.dumps(made))
    except Exception:  # a subclass of ours with something in it that can't be pickled
        plain = DataError(f"{type(made).__name__}: {made.message}", hint=made.hint, trace=made.trace)
        return pickle.dumps(plain)
