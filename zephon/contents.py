"""What a recipe keeps of a data set's files and columns: enough to say what changed, in a kilobyte or two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon.keys import key
from zephon.plugin import Shard

_ENTRIES = 64
_NAME_BYTES = 1024
_TYPE_CHARS = 40


def describe_files(shards: Sequence[Shard], rows: npt.NDArray[np.int64]) -> dict[str, Any]:
    """`{"of": name pattern or None, "at": {name: digests}}`.

    Up to 64 shards have an entry each: 4 hex digits of size and version, 4 of the row count. Of more, 64 runs of neighbouring shards
    have one (`"16×…"`), which begin at the 64 names with the lowest hashes: so a new shard changes one run and not all that follow it.
    """
    names = _names([shard.path for shard in shards])
    starts = list(range(len(names)))
    if len(names) > _ENTRIES:
        order = np.argsort(np.array([key("run", name) for name in names[1:]], dtype=np.uint64), kind="stable")
        starts = [0, *sorted((order[: _ENTRIES - 1] + 1).tolist())]
    entries = {}
    short, pattern = _shortened([names[start] for start in starts])
    for name, (start, stop) in zip(short, pairwise([*starts, len(names)]), strict=True):
        files = [part for s in shards[start:stop] for part in (s.size, s.etag)]
        if stop - start > 1:
            files += names[start:stop]
        count = f"{stop - start}×" if stop - start > 1 else ""
        entries[name] = f"{count}{_digest(*files)}.{_digest(*rows[start:stop].tolist())}"
    return {"of": pattern, "at": entries}


def _names(paths: Sequence[str]) -> list[str]:
    """The paths below their common directory, each a name of its own."""
    parts = [path.split("/") for path in paths]
    common = min([_common(parts), *(len(p) - 1 for p in parts)])
    seen: dict[str, int] = {}
    out = []
    for one in parts:
        name = "/".join(one[common:])
        seen[name] = seen.get(name, 0) + 1
        out.append(name if seen[name] == 1 else f"{name}#{seen[name]}")  # several shards of one file
    return out


def _shortened(names: Sequence[str]) -> tuple[list[str], str | None]:
    """Names that fit into a kilobyte: as they are, without their common beginning and end, or cut."""
    if sum(map(len, names)) <= _NAME_BYTES:
        return list(names), None
    head = _common(names)
    tail = _common([name[head:][::-1] for name in names])
    middles = [name[head : len(name) - tail] for name in names]
    longest = max(_NAME_BYTES // len(names), 16)
    cut = [m if len(m) <= longest else f"{m[: longest - 6]}…{_digest(m)}" for m in middles]
    return cut, f"{names[0][:head]}*{names[0][len(names[0]) - tail :]}"


def _common(sequences: Sequence[Any]) -> int:
    """How many elements all of them begin with."""
    if not sequences:
        return 0
    first, last = min(sequences), max(sequences)  # what these two share, all between them share
    return next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))


def _digest(*parts: int | str) -> str:
    return f"{key(*parts) & 0xFFFF:04x}"


def describe_columns(schema: pa.Schema) -> dict[str, str]:
    """`{column: type}`; long types are cut and end in a digest. Of more than 64 columns, one digest of them all."""
    if len(schema) > _ENTRIES:
        return {f"{len(schema)} columns": f"{key(str(schema)):016x}"}
    types = {field.name: str(field.type) for field in schema}
    return {n: t if len(t) <= _TYPE_CHARS else f"{t[: _TYPE_CHARS - 6]}…#{_digest(t)}" for n, t in types.items()}


def file_differences(saved: Mapping[str, Any], now: Mapping[str, Any], label: str) -> list[str]:
    """What changed between two `describe_files`, in words, a line per shard or run of shards."""
    was, here = dict(saved.get("at", {})), dict(now.get("at", {}))
    if saved.get("of") != now.get("of"):
        # the names were shortened in another way; spelled out, they can be compared where none was cut
        was, here = _spelled(saved, was), _spelled(now, here)
    out = []
    for name in [*was, *(n for n in here if n not in was)]:
        before, after = was.get(name), here.get(name)
        if before == after:
            continue
        count = max((int(e.split("×")[0]) for e in (before, after) if e is not None and "×" in e), default=1)
        shards = f"shard {name!r}" if count == 1 else f"{count} shards from {name!r} on"
        verb = "is" if count == 1 else "are"
        if before is None:
            out.append(f"{label} {shards} {verb} new")
        elif after is None:
            out.append(f"{label} {shards} {verb} gone")
        else:
            out.append(f"{label} {shards}: {_entry_difference(before, after)}")
    return out


def _spelled(files: Mapping[str, Any], entries: Mapping[str, str]) -> dict[str, str]:
    pattern = files.get("of")
    return {name if pattern is None else pattern.replace("*", name, 1): entry for name, entry in entries.items()}


def _entry_difference(before: str, after: str) -> str:
    (count, files, rows), (count_now, files_now, rows_now) = _entry(before), _entry(after)
    if count != count_now:
        return f"{count} were there, {count_now} are"
    changed = ["size or version"] * (files != files_now) + ["number of rows"] * (rows != rows_now)
    return f"another {' and '.join(changed)}"


def _entry(text: str) -> tuple[str, str, str]:
    count, _, rest = text.rpartition("×")
    files, _, rows = rest.partition(".")
    return count or "1", files, rows


def column_differences(saved: Mapping[str, str], now: Mapping[str, str], label: str) -> list[str]:
    """What changed between two `describe_columns`, in words, a line per column; and one if only their order did."""
    out = []
    for name in [*saved, *(n for n in now if n not in saved)]:
        if name not in saved:
            out.append(f"{label} column {name!r} is new ({now[name]})")
        elif name not in now:
            out.append(f"{label} column {name!r} is gone (was {saved[name]})")
        elif saved[name] != now[name]:
            out.append(f"{label} column {name!r} was {saved[name]}, is {now[name]}")
    if not out and list(saved) != list(now):
        out.append(f"{label} columns are in another order")
    return out
