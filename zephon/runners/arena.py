"""Messages between processes: plain values and record groups, large ones in shared memory that has no name.

A parcel is written into a `memfd` (Linux) or an unlinked temporary file, and only its descriptor crosses the Unix socket. So
nothing can be left behind when a process is killed, jobs can't meet each other, `/dev/shm` isn't used, and a full disk or memory
is an error of `write` and not a bus error. The other side maps the memory; Arrow reads it without a copy.
"""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import pickle
import socket
import struct
import tempfile
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from zephon.errors import RunnerError

INLINE_BYTES = 64 * 1024
"""Parcels up to this size go over the socket itself: cheaper than making and mapping memory."""
_ALIGNMENT = 64
_HEADER = struct.Struct("<QQ")
"""Bytes that follow on the socket, bytes in the descriptor's memory; one of them is 0."""
_HEAD = struct.Struct("<QQ")
"""At the start of a parcel: bytes of the pickled head, number of groups."""
_DESCRIPTOR = struct.Struct("@i")
_OPTIONS = pa.ipc.IpcWriteOptions(allow_64bit=True)


@dataclass(eq=False)
class Parcel:
    """One packed message: its bytes, or the descriptor of the memory that holds them."""

    body: bytes = b""
    descriptor: int | None = None
    size: int = 0

    def close(self) -> None:
        """Give the descriptor back. Memory that is mapped stays until the last buffer over it is gone."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


def pack(head: Any, groups: Sequence[pa.RecordBatch]) -> Parcel:
    """One parcel out of a picklable value and groups.

    Raises:
        RunnerError: there is room for it neither in memory nor in the folder for temporary files.
    """
    sink = _Sink()
    try:
        write(sink, head, groups)
        return sink.parcel()
    except BaseException:
        sink.discard()
        raise


def write(sink: Any, head: Any, groups: Sequence[pa.RecordBatch]) -> None:
    """Write a picklable value, and groups as Arrow's streams, into a file-like object at its beginning."""
    pickled = pickle.dumps(head, protocol=pickle.HIGHEST_PROTOCOL)
    sink.write(_HEAD.pack(len(pickled), len(groups)))
    sink.write(pickled)
    sink.write(bytes(-sink.tell() % _ALIGNMENT))
    for run in _runs(groups):
        with pa.ipc.new_stream(sink, run[0].schema, options=_OPTIONS) as writer:
            for group in run:
                writer.write_batch(group)


def _runs(groups: Iterable[pa.RecordBatch]) -> Iterable[list[pa.RecordBatch]]:
    """Neighbours of the same schema share one stream."""
    run: list[pa.RecordBatch] = []
    for group in groups:
        if run and not group.schema.equals(run[0].schema, check_metadata=True):
            yield run
            run = []
        run.append(group)
    if run:
        yield run


def unpack(parcel: Parcel) -> tuple[Any, list[pa.RecordBatch]]:
    """The value and the groups of a parcel, which is closed. The groups are read-only views of its memory."""
    try:
        content = pa.py_buffer(parcel.body) if parcel.descriptor is None else _map(parcel.descriptor, parcel.size)
    finally:
        parcel.close()
    return read(content)


def read(content: pa.Buffer) -> tuple[Any, list[pa.RecordBatch]]:
    """What `write` wrote. The groups are views of this memory."""
    length, count = _HEAD.unpack_from(content)
    end = _HEAD.size + length
    head = pickle.loads(memoryview(content)[_HEAD.size : end])
    reader = pa.BufferReader(content)
    reader.seek(end + -end % _ALIGNMENT)
    groups: list[pa.RecordBatch] = []
    while len(groups) < count:
        groups += pa.ipc.open_stream(reader)
    return head, groups


def _map(descriptor: int, size: int) -> pa.Buffer:
    # Arrow's map gives its descriptor back at once, while `mmap.mmap` keeps one (until Python 3.13) as long as the data lives:
    # a few hundred groups in flight would use up the usual limit of 1,024.
    try:
        with pa.memory_map(f"/proc/self/fd/{descriptor}") as file:
            return file.read_buffer()
    except OSError:
        pass  # no /proc
    try:
        return pa.py_buffer(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ))
    except OSError:  # too many maps or descriptors: copy
        with open(descriptor, "rb", closefd=False) as copy:
            copy.seek(0)
            return pa.py_buffer(copy.read())


class _Sink(io.RawIOBase):
    """A file to write to once: in a bytearray while it is small, then in nameless memory, or where there is none on disk."""

    def __init__(self) -> None:
        self._small = bytearray()
        self._size = 0
        self._descriptor: int | None = None
        self._on_disk = False

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, data: Any) -> int:
        # small pieces are gathered, large ones written from where they are
        view = memoryview(data).cast("B")
        if len(self._small) + len(view) > INLINE_BYTES:
            self._flush_small()
            if len(view) >= INLINE_BYTES // 4:
                self._store(view)
            else:
                self._small += view
        else:
            self._small += view
        self._size += len(view)
        return len(view)

    def parcel(self) -> Parcel:
        if self._descriptor is None:
            return Parcel(bytes(self._small), None, self._size)
        self._flush_small()
        descriptor, self._descriptor = self._descriptor, None
        return Parcel(b"", descriptor, self._size)

    def discard(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _flush_small(self) -> None:
        self._store(memoryview(bytes(self._small)))
        self._small.clear()

    def _store(self, view: memoryview) -> None:
        if self._descriptor is None:
            self._make()
        while len(view):
            assert self._descriptor is not None
            try:
                view = view[os.write(self._descriptor, view) :]  # Linux writes at most 2 GiB in one go
            except OSError as error:
                if self._on_disk:
                    raise self._no_room(error) from error
                self._move_to_disk()

    def _make(self) -> None:
        try:
            self._descriptor = os.memfd_create("zephon")
        except (AttributeError, OSError):  # not Linux, or forbidden here
            self._descriptor = self._make_on_disk()

    def _make_on_disk(self) -> int:
        try:
            with tempfile.TemporaryFile(buffering=0) as file:
                self._on_disk = True
                return os.dup(file.fileno())
        except OSError as error:
            raise self._no_room(error) from error

    def _move_to_disk(self) -> None:
        assert self._descriptor is not None
        memory, self._descriptor = self._descriptor, None
        try:
            self._descriptor = self._make_on_disk()
            offset = 0
            while piece := os.pread(memory, 1 << 20, offset):
                offset += os.write(self._descriptor, piece)
        except OSError as error:
            raise self._no_room(error) from error
        finally:
            os.close(memory)

    def _no_room(self, error: OSError) -> RunnerError:
        return RunnerError(
            f"no room for a message between processes, after {self._size} bytes of it: {error}",
            hint=f"free memory or space in {tempfile.gettempdir()!r} (set TMPDIR to move it), lower the byte budget, or use threads",
        )


class Channel:
    """Parcels over one end of a Unix socket. One thread may send while another receives."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        # two small parcels must fit, so that sending to a worker never waits for it
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 * INLINE_BYTES)
        self._bytes = bytearray()
        self._descriptors: deque[int] = deque()

    def send(self, parcel: Parcel, *, keep: bool = False) -> None:
        """Send a parcel, and close it unless it is to be kept for more receivers.

        Raises:
            OSError: the other end is gone (BrokenPipeError, ConnectionResetError), or the system can't pass a descriptor now.
        """
        try:
            if parcel.descriptor is None:
                self.socket.sendall(_HEADER.pack(len(parcel.body), 0) + parcel.body)
            else:
                header = _HEADER.pack(0, parcel.size)
                sent = socket.send_fds(self.socket, [header], [parcel.descriptor])
                self.socket.sendall(header[sent:])
        finally:
            if not keep:
                parcel.close()

    def receive(self) -> list[Parcel] | None:
        """The parcels that have arrived (maybe none yet), without waiting; None once the other end is gone.

        Raises:
            RunnerError: a descriptor was lost because this process has too many open files.
        """
        flags = socket.MSG_DONTWAIT | getattr(socket, "MSG_CMSG_CLOEXEC", 0)
        try:  # not `socket.recv_fds`, which ignores its flags (seen in Python 3.11)
            data, ancillary, result, _ = self.socket.recvmsg(4 * INLINE_BYTES, socket.CMSG_SPACE(4 * _DESCRIPTOR.size), flags)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError:  # reset: it went away with something unread
            return None
        for level, kind, payload in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                whole = len(payload) - len(payload) % _DESCRIPTOR.size
                self._descriptors += (number for (number,) in _DESCRIPTOR.iter_unpack(payload[:whole]))
        if result & socket.MSG_CTRUNC:
            raise RunnerError("this process has too many open files", hint="raise the limit (`ulimit -n`)")
        if not data:
            return None
        self._bytes += data
        return list(self._whole_parcels())

    def _whole_parcels(self) -> Iterable[Parcel]:
        while len(self._bytes) >= _HEADER.size:
            length, memory = _HEADER.unpack_from(self._bytes)
            end = _HEADER.size + length
            if len(self._bytes) < end:
                return
            body = bytes(memoryview(self._bytes)[_HEADER.size : end])
            del self._bytes[:end]
            yield Parcel(body, self._descriptors.popleft() if memory else None, memory or length)

    def close(self) -> None:
        """Hang up, also for a thread that is sending."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        while self._descriptors:
            os.close(self._descriptors.popleft())
