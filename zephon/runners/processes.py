"""Tasks in processes of their own: for Python code that holds the GIL, and for libraries that may crash.

Workers are fresh interpreters, neither forks of this one nor readers of the user's main module. One thread of the parent, the
`zephon-processes` thread, does all sending and receiving, so that nothing but its queue is shared.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import RLock, Thread, current_thread

from zephon.errors import InternalError, RunnerError, Where, ZephonError
from zephon.runners.arena import Channel, Parcel, pack, unpack
from zephon.runners.base import StageSpec
from zephon.runners.pool import Pool, PooledRunner, Task
from zephon.runners.sending import pickled_stage
from zephon.runners.worker import QUIET, cancel, fail, ours, succeed

log = logging.getLogger("zephon.runners")

_DEPTH = 2
"""Tasks at a worker: one that runs and one that is there when it ends."""
_LOOK_S = 1.0
"""How often workers are looked at that died without closing their socket (because a child of theirs holds it, too)."""
_GRACE_S = 2.0
"""How long workers may take to end by themselves, then after SIGTERM; then comes SIGKILL."""
_END_S = 60.0
"""How long `close` waits for the pool's thread, which needs less unless the machine stands still."""
_BOOT = "import sys; sys.path[:] = sys.argv[4:]; from zephon.runners.worker import main; main(*map(int, sys.argv[1:4]))"
_ONE_THREAD_EACH = {
    "MKL_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""For workers, where the user hasn't set them: the workers are the parallelism."""


class Processes(PooledRunner):
    """A pool of worker processes that is started once and lives until `close`.

    After the death of a worker all futures fail with a `RunnerError` that names it and what it did.
    """

    def open(self, stages: Sequence[StageSpec]) -> _Pool:
        """Start all workers, without waiting for them.

        Raises:
            RunnerError: a stage can't be pickled (it says which, and which part of it), or a process can't be started.
        """
        if not hasattr(socket, "send_fds") or not hasattr(os, "getppid"):
            raise RunnerError("the runner 'processes' needs Unix sockets", hint="use runner='threads'")
        return _Pool(stages, self.workers)


@dataclass(eq=False)
class _Worker:
    index: int
    process: subprocess.Popen[bytes]
    channel: Channel
    ready: bool = False
    running: deque[Task] = field(default_factory=deque)
    """In the order in which it works, and answers."""

    def __str__(self) -> str:
        return f"worker {self.index} (pid {self.process.pid})"


class _Pool(Pool):
    def __init__(self, stages: Sequence[StageSpec], workers: int) -> None:
        super().__init__()
        self._names = [stage.name for stage in stages]
        self._fingerprints = [stage.fingerprint for stage in stages]
        self._pending: deque[Task] = deque()
        self._broken: ZephonError | None = None
        self._workers: list[_Worker] = []
        self._wanted = workers
        self._stages = pack([(stage.name, pickled_stage(stage)) for stage in stages], [])
        try:
            for index in range(workers):
                self._workers.append(_start_worker(index, self._stages))
        except BaseException as error:
            _end(self._workers)
            self._stages.close()
            if isinstance(error, OSError):
                raise RunnerError(f"worker {len(self._workers)} can't be started: {error}", hint="use fewer workers") from error
            raise
        self._wake_lock = RLock()  # re-entrant: the collector may run `close` in the pool's thread
        self._ear, self._bell = socket.socketpair()
        self._ear.setblocking(False)
        self._bell.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._ear, selectors.EVENT_READ, None)
        for worker in self._workers:
            self._selector.register(worker.channel.socket, selectors.EVENT_READ, worker)
        # A daemon, because the interpreter joins other threads before it runs exit handlers; the exit handler joins this one.
        self._thread = Thread(target=self._run, name="zephon-processes", daemon=True)
        self._thread.start()

    def add(self, task: Task) -> None:
        if self._broken is not None:
            fail(task.future, _again(self._broken))
            return
        if self.refused(task):
            return
        self._pending.append(task)
        self._wake()
        if self._broken is not None or self._closing:  # since just now: either the thread sees the task, or this does
            self._refuse_pending()

    def close(self) -> None:
        if self._owner != os.getpid():
            return  # a fork's copy: the workers are not its own
        self._closing = True
        self._wake()
        if self._thread is not current_thread():  # the collector may run `close` in it
            self._thread.join(_END_S)

    def resize(self, workers: int) -> None:
        """More: they are started. Fewer: the others idle, since one that is there may be wanted again."""
        self._wanted = workers
        self._wake()

    def _refuse_pending(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                task = self._pending.popleft()
                if self._broken is None:
                    cancel(task.future)
                else:
                    fail(task.future, _again(self._broken))

    def _wake(self) -> None:
        with self._wake_lock, contextlib.suppress(OSError):  # full: it is awake; closed: it has ended
            self._bell.send(b"!")

    # ---- what follows runs in the pool's thread only

    def _run(self) -> None:
        try:
            looked = time.monotonic()
            while not self._closing:
                self._hear_all()
                self._hire()
                if time.monotonic() - looked > _LOOK_S:
                    looked = time.monotonic()
                    self._look_for_deaths()
                self._send_pending()
        except BaseException as error:
            self._break(InternalError(f"the runner failed: {type(error).__name__}: {error}", trace=ours(error, Where()).trace))
        finally:
            self._end()

    def _hire(self) -> None:
        while len(self._workers) < self._wanted and self._broken is None:
            try:
                worker = _start_worker(len(self._workers), self._stages)
            except OSError as error:
                log.warning("no more than %d workers: another can't be started: %s", len(self._workers), error)
                self._wanted = len(self._workers)
                return
            self._workers.append(worker)
            self._selector.register(worker.channel.socket, selectors.EVENT_READ, worker)

    def _hear_all(self) -> None:
        for key, _ in self._selector.select(_LOOK_S):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    self._ear.recv(4096)
            else:
                self._hear(key.data)

    def _hear(self, worker: _Worker) -> None:
        try:
            parcels = worker.channel.receive()
        except RunnerError as error:  # a message is lost, and with it the order of the answers
            worker.process.kill()
            self._bury(worker, error)
            return
        for parcel in parcels or ():
            if worker.ready:
                self._answer(worker, parcel)
            else:
                self._greet(worker, parcel)
        if parcels is None:
            self._bury(worker)

    def _greet(self, worker: _Worker, parcel: Parcel) -> None:
        """The first message: the fingerprints of the stages as the worker sees them, or why it can't load one."""
        (fingerprints, failure), _ = unpack(parcel)
        if failure is not None:
            self._break(pickle.loads(failure))
            return
        for name, mine, its in zip(self._names, self._fingerprints, fingerprints, strict=True):
            if mine != its:
                self._break(
                    RunnerError(
                        f"stage {name!r} changed on its way to {worker}: its fingerprint is {mine} here and {its} there",
                        hint="an object in it loses a field when it is pickled: see its __reduce__ or __getstate__",
                    )
                )
                return
        worker.ready = True

    def _answer(self, worker: _Worker, parcel: Parcel) -> None:
        task = worker.running.popleft()
        try:
            (note, failure), groups = unpack(parcel)
            error = None if failure is None else pickle.loads(failure)
        except Exception as unreadable:
            error = RunnerError(f"the result of {task.label!r} from {worker} can't be read: {unreadable}")
        if error is None:
            succeed(task.future, (groups, note))
        else:
            fail(task.future, error)

    def _send_pending(self) -> None:
        while self._pending and self._broken is None:
            worker = min((w for w in self._workers[: self._wanted] if w.ready), key=lambda w: len(w.running), default=None)
            if worker is None or len(worker.running) >= _DEPTH:
                return
            task = self._pending.popleft()
            if task.future.set_running_or_notify_cancel():
                self._send(worker, task)

    def _send(self, worker: _Worker, task: Task) -> None:
        try:
            parcel = pack((task.stage, task.note), task.groups)
        except Exception as error:
            fail(task.future, ours(error, Where()))
            return
        task.groups = ()  # the memory is the parcel's now
        worker.running.append(task)
        try:
            worker.channel.send(parcel)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it died; its end is about to be heard
        except OSError as error:
            worker.process.kill()
            self._bury(
                worker, RunnerError(f"{worker} can't be reached: {error}", hint="raise the limit of open files (`ulimit -n`)")
            )

    def _look_for_deaths(self) -> None:
        for worker in list(self._workers):
            if worker.process.poll() is not None:
                self._hear(worker)  # what it said before
                if worker in self._workers:
                    self._bury(worker)

    def _bury(self, worker: _Worker, error: RunnerError | None = None) -> None:
        """Take a dead (or lost) worker out, and fail its tasks."""
        self._workers.remove(worker)
        self._selector.unregister(worker.channel.socket)
        worker.channel.close()
        code = _code(worker.process)
        if self._closing:
            error = RunnerError(f"the runner was closed while {worker} worked")
        self._break(error or _obituary(worker, code, self._names))
        assert self._broken is not None
        for task in worker.running:
            fail(task.future, _again(self._broken))

    def _break(self, error: ZephonError) -> None:
        if self._broken is None:
            self._broken = error
        self._refuse_pending()

    def _end(self) -> None:
        self._refuse_pending()
        for worker in self._workers:
            for task in worker.running:
                closed = RunnerError(f"the runner was closed while {worker} did {task.label!r}")
                fail(task.future, _again(self._broken or closed))
        _end(self._workers)
        self._stages.close()
        self._selector.close()
        with self._wake_lock:
            self._ear.close()
            self._bell.close()


def _again(error: ZephonError) -> ZephonError:
    """A copy: every future gets its own, since places are added to errors on their way up."""
    return error.again()


def _start_worker(index: int, stages: Parcel) -> _Worker:
    mine, its = socket.socketpair()
    # Inherited by the new process, which unblocks them once it ignores them: no Ctrl-C meets it half started.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, QUIET)
    try:
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        path = [entry for entry in sys.path if isinstance(entry, str)]
        process = subprocess.Popen(
            [sys.executable, *flags, "-c", _BOOT, str(index), str(its.fileno()), str(os.getpid()), *path],
            stdin=subprocess.DEVNULL,
            env={**_ONE_THREAD_EACH, **os.environ},
            pass_fds=[its.fileno()],
        )
    except BaseException:
        mine.close()
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        its.close()
    worker = _Worker(index, process, Channel(mine))
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it died at once, which will be heard
        worker.channel.send(stages, keep=True)
    return worker


def _code(process: subprocess.Popen[bytes]) -> int:
    """The exit code of a process that has hung up: minus the signal's number if one killed it."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(_GRACE_S)
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(_GRACE_S)
    return -signal.SIGKILL


def _obituary(worker: _Worker, code: int, names: Sequence[str]) -> RunnerError:
    how = f"died with signal {-code}" if code < 0 else f"ended with exit code {code}"
    if worker.running:
        task = worker.running[0]
        what = f"while it ran {names[task.stage]!r} [{task.label}]"
    else:
        what = "while it waited for work" if worker.ready else "before it was ready"
    hints = {
        -signal.SIGKILL: "likely out of memory: look for the kernel's message; lower the byte budget or the number of workers",
        -signal.SIGTERM: "somebody ended it: a scheduler's or a container's limit?",
        -signal.SIGBUS: "a mapped file was cut short, or memory ran out",
    }
    crash = (
        "a library crashed; its stack is on the worker's stderr"
        if code < 0
        else "see the worker's stderr; or something in it calls os._exit()"
    )
    return RunnerError(f"{worker} {how} {what}", hint=hints.get(code, crash))


def _end(workers: Sequence[_Worker]) -> None:
    """Hang up; wait, then SIGTERM, then SIGKILL; reap."""
    for worker in workers:
        worker.channel.close()
        if not worker.ready:
            worker.process.terminate()  # still importing: nothing to end in order
    for stop in (subprocess.Popen.terminate, subprocess.Popen.kill):
        end = time.monotonic() + _GRACE_S
        for worker in workers:
            try:
                worker.process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                stop(worker.process)
    for worker in workers:
        with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel holds it (a dead network disk, say)
            worker.process.wait(_GRACE_S)
