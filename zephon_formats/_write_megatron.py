"""Writes one pair of `.bin` and `.idx`, byte for byte as Megatron's own builder does."""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
from typing import Any

import numpy as np
import pyarrow as pa

from zephon.plugin import DataError, RecipeError, groups

NAME = "tokens"
_CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}


class MegatronWriter:
    """See `ShardWriter`; it makes a directory with `tokens.bin` and `tokens.idx`. The one column is `input_ids`, lists of integers of
    at most 64 bits; a row is a document of one sequence, and tokens keep the type of the column."""

    def __init__(self, path: str, schema: pa.Schema) -> None:
        kind: Any = schema.field(0).type if schema.names == [groups.TOKENS] else None
        if kind is None or not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or str(kind.value_type) not in _CODES:
            found = ", ".join(f"{field.name} ({field.type})" for field in schema)
            raise RecipeError(
                f"Megatron holds one column {groups.TOKENS!r} of token lists; these are {found}",
                hint=f"--columns {groups.TOKENS}, after tokenising",
            )
        self._dtype = np.dtype(str(kind.value_type)).newbyteorder("<")
        self._code = _CODES[str(kind.value_type)]
        self._lengths: list[np.ndarray[Any, Any]] = []
        self._rows = 0
        self._path = path
        os.mkdir(path)
        self._file = open(os.path.join(path, f"{NAME}.bin"), "wb")  # noqa: SIM115 - closed by close or abort

    def write(self, batch: pa.RecordBatch) -> None:
        """See `ShardWriter.write`."""
        column: Any = batch.column(0)
        values = column.flatten()
        if column.null_count or values.null_count:
            row = self._rows + next(i for i, v in enumerate(column.to_pylist()) if v is None or None in v)
            raise DataError(f"row {row} of the part is null or has null tokens, and Megatron has no nulls")
        self._lengths.append(np.diff(column.offsets.to_numpy()).astype("<i4"))
        self._rows += len(batch)
        self._file.write(np.ascontiguousarray(values.to_numpy(), dtype=self._dtype).tobytes())

    def close(self) -> None:
        """See `ShardWriter.close`."""
        self._file.close()
        lengths = np.concatenate([np.zeros(0, "<i4"), *self._lengths])
        begins = (np.cumsum(lengths, dtype="<i8") - lengths) * self._dtype.itemsize
        with open(os.path.join(self._path, f"{NAME}.idx"), "wb") as file:
            file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, self._code, self._rows, self._rows + 1))
            file.write(lengths.tobytes() + begins.astype("<i8").tobytes() + np.arange(self._rows + 1, dtype="<i8").tobytes())

    def abort(self) -> None:
        """See `ShardWriter.abort`."""
        with contextlib.suppress(OSError):
            self._file.close()
        shutil.rmtree(self._path, ignore_errors=True)
