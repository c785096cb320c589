"""Tars for tests."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from formats.reading import open_file, read_rows

from zephon_formats.webdataset import WebDataset

Files = Iterable[tuple[str, bytes]]


def tar_bytes(files: Files, kind: int = tarfile.USTAR_FORMAT) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=kind) as tar:
        for name, data in files:
            add(tar, name, data)
    return sink.getvalue()


def add(tar: tarfile.TarFile, name: str, data: bytes = b"", **settings: Any) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in settings.items():
        setattr(info, key, value)
    tar.addfile(info, io.BytesIO(data))


def tar_file(path: Path, files: Files, kind: int = tarfile.USTAR_FORMAT) -> Path:
    path.write_bytes(tar_bytes(files, kind))
    return path


def rows_of(path: Path, columns: Sequence[str] | None = None, **options: Any) -> list[dict[str, Any]]:
    opened = open_file(WebDataset(**options), path)
    try:
        return read_rows(opened, columns)
    finally:
        opened.close()
