"""Each format's small real files, by its real library, and what that library reads back; through the helpers of `tests/formats`."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from formats import mds_data, writers_litdata
from formats.test_arrow import write_stream
from formats.test_conformance import lines_of
from formats.test_csv import write_csv
from formats.test_megatron import write_pair
from formats.test_vortex import write as write_vortex
from formats.test_webdataset import as_bytes, tar_file, their_rows

Rows = list[dict[str, Any]]


def plain_rows(count: int) -> Rows:
    return [{"id": i, "text": f"row {i} " + "ü→日" * (i % 4)} for i in range(count)]


def text_rows(count: int) -> Rows:
    return [{"text": row["text"].strip()} for row in plain_rows(count)]


def token_rows(count: int) -> Rows:
    return [{"input_ids": list(range(i, i + 1 + i * 5 % 9))} for i in range(count)]


def sample_rows(count: int) -> Rows:
    return [{"__key__": f"{i:05d}", "txt": row["text"], "cls": i} for i, row in enumerate(plain_rows(count))]


@dataclass(frozen=True)
class Format:
    """How a format's files are made: `write(folder, parts)` makes one shard of each part, in order."""

    name: str
    write: Callable[[Path, Sequence[Rows]], None]
    theirs: Callable[[Path], Rows] | None
    """What the format's own library reads from the folder. None: that library takes 10 s to import; its own files are in
    `tests/formats/golden`, and `test_megatron` asks it where it is installed."""
    rows: Callable[[int], Rows] = plain_rows
    suffix: str = ""
    """Of data files; "": the format is a set, whose shards an index or manifest lists."""
    checks: bool = True
    """Whether cut data can be told from whole data at all."""

    def write_rows(self, folder: Path, count: int, shards: int) -> Rows:
        """Write `count` rows in so many shards of one size into a new folder, and return them."""
        folder.mkdir(parents=True, exist_ok=True)
        rows, size = self.rows(count), count // shards
        self.write(folder, [rows[i : i + size] for i in range(0, count, size)])
        return rows


def in_files(suffix: str, one: Callable[[Path, Rows], Any]) -> Callable[[Path, Sequence[Rows]], None]:
    """A file for each part."""

    def write(folder: Path, parts: Sequence[Rows]) -> None:
        for number, part in enumerate(parts):
            one(folder / f"part-{number}{suffix}", part)

    return write


def from_files(suffix: str, one: Callable[[Path], Rows]) -> Callable[[Path], Rows]:
    return lambda folder: [row for path in sorted(folder.glob(f"*{suffix}")) for row in one(path)]


def table(rows: Rows) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=pa.schema([("id", pa.int64()), ("text", pa.string())]))


def _read_arrow(path: Path) -> Rows:
    with pa.ipc.open_stream(str(path)) as stream:
        return stream.read_all().to_pylist()


def _read_csv(path: Path) -> Rows:
    with path.open(newline="", encoding="utf-8") as file:
        return [{"id": int(row["id"]), "text": row["text"]} for row in csv.DictReader(file)]


def _read_vortex(path: Path) -> Rows:
    import vortex

    return vortex.open(str(path)).to_arrow().read_all().to_pylist()


def _write_tar(path: Path, rows: Rows) -> None:
    members = [(f"{row['__key__']}.{n}", v) for row in rows for n, v in as_bytes(row).items() if n != "__key__"]
    tar_file(path, members)


def _read_tar(path: Path) -> Rows:
    return [{"__key__": r["__key__"], "txt": r["txt"].decode(), "cls": int(r["cls"])} for r in their_rows(path)]


def _write_lance(folder: Path, parts: Sequence[Rows]) -> None:
    import lance

    for part in parts:
        lance.write_dataset(table(part), str(folder / "d.lance"), mode="append" if (folder / "d.lance").exists() else "create")


def _read_lance(folder: Path) -> Rows:
    import lance

    return lance.dataset(str(folder / "d.lance")).to_table().to_pylist()


def _write_litdata(folder: Path, parts: Sequence[Rows]) -> None:
    writers_litdata.write(folder, [row for part in parts for row in part], chunk_size=len(parts[0]))


def _write_mds(folder: Path, parts: Sequence[Rows]) -> None:
    """A stream per part."""
    for number, part in enumerate(parts):
        mds_data.write(folder / f"s{number}", part, {"id": "int", "text": "str"})


def _read_mds(folder: Path) -> Rows:
    scratch = folder.with_name(f"{folder.name}-theirs")
    return [r for n, s in enumerate(sorted(folder.glob("s*"))) for r in mds_data.theirs(s, scratch / str(n))]


FORMATS = {
    made.name: made
    for made in [
        Format(
            "parquet",
            in_files(".parquet", lambda path, rows: pq.write_table(table(rows), path, row_group_size=6)),
            from_files(".parquet", lambda path: pq.read_table(path).to_pylist()),
            suffix=".parquet",
        ),
        Format(
            "jsonl",
            in_files(".jsonl", lambda path, rows: path.write_bytes(lines_of(rows))),
            from_files(".jsonl", lambda path: [json.loads(line) for line in path.read_bytes().splitlines()]),
            suffix=".jsonl",
        ),
        Format(
            "arrow",
            in_files(".arrows", lambda path, rows: write_stream(path, table(rows))),
            from_files(".arrows", _read_arrow),
            suffix=".arrows",
        ),
        Format(
            "csv",
            in_files(".csv", lambda path, rows: path.write_bytes(write_csv(rows, ",", "\n"))),
            from_files(".csv", _read_csv),
            suffix=".csv",
            checks=False,
        ),
        Format(
            "text",
            in_files(".txt", lambda path, rows: path.write_text("".join(row["text"] + "\n" for row in rows), encoding="utf-8")),
            from_files(".txt", lambda path: [{"text": line} for line in path.read_text(encoding="utf-8").splitlines()]),
            rows=text_rows,
            suffix=".txt",
            checks=False,
        ),
        Format(
            "vortex",
            in_files(".vortex", lambda path, rows: write_vortex(path, table(rows))),
            from_files(".vortex", _read_vortex),
            suffix=".vortex",
        ),
        Format("webdataset", in_files(".tar", _write_tar), from_files(".tar", _read_tar), rows=sample_rows, suffix=".tar"),
        Format(
            "megatron",
            in_files(".idx", lambda path, rows: write_pair(path, [row["input_ids"] for row in rows])),
            None,
            rows=token_rows,
            suffix=".idx",
        ),
        Format("litdata", _write_litdata, lambda folder: [writers_litdata.plain(r) for r in writers_litdata.read_back(folder)]),
        Format("mds", _write_mds, _read_mds),
        Format("lance", _write_lance, _read_lance),
    ]
}
