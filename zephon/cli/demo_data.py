"""Two real text data sets and a tokenizer for the demo, made out of what Python's installation holds; nothing is downloaded."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from zephon.errors import DataError

END_OF_TEXT = "<|endoftext|>"

_LONGEST = 4_000
"""Characters per record; a longer file becomes several records, so that no record outweighs all others."""
_SHORTEST = 200
_DOCUMENTS = (".md", ".rst", ".txt")
_DOCUMENT_NAMES = ("AUTHORS", "COPYING", "LICENCE", "LICENSE", "METADATA", "NOTICE", "README")
_DOCSTRING = re.compile(r'^[ \t]*[rR]?"""(.+?)"""', re.DOTALL | re.MULTILINE)
_ROWS_PER_GROUP = 256

Record = dict[str, Any]


def python_sources(limit: int) -> Iterator[Record]:
    """The Python files of the standard library and of installed packages, up to `limit` bytes of text."""
    yield from _up_to(limit, (r for path in _spread(_files(_is_source)) for r in _records(path, _read(path))))


def documents(limit: int) -> Iterator[Record]:
    """Documentation: text files of installed packages, then, while that is too little, the docstrings of modules."""
    texts = (r for path in _spread(_files(_is_document)) for r in _records(path, _read(path)))
    docstrings = (r for path in _spread(_files(_is_source)) for r in _records(path, _docstrings(_read(path))))
    yield from _up_to(limit, (record for source in (texts, docstrings) for record in source))


def mixed(records: Iterable[Record]) -> list[Record]:
    """The records by the hash of their text: the pieces of a long file far apart, and equal texts once."""
    by_hash = {hashlib.sha256(record["text"].encode()).digest(): record for record in records}
    return [by_hash[digest] for digest in sorted(by_hash)]


def write_parquet(path: Path, records: Iterable[Record]) -> int:
    """Write one Parquet file; how many bytes of text it holds. Raises `DataError` where there are no records."""
    table = pa.Table.from_pylist(list(records), schema=pa.schema([("path", pa.string()), ("text", pa.string())]))
    if not len(table):
        raise DataError(f"this Python installation has no text for {path.name}")
    pq.write_table(table, path, row_group_size=_ROWS_PER_GROUP)
    return int(table.column("text").nbytes)


def write_jsonl(path: Path, records: Iterable[Record]) -> int:
    """Write one JSONL file; how many bytes of text it holds. Raises `DataError` where there are no records."""
    total = 0
    with path.open("w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
            total += len(record["text"].encode())
    if not total:
        raise DataError(f"this Python installation has no text for {path.name}")
    return total


def train_tokenizer(texts: Iterable[str], path: Path, *, vocabulary: int, special: Sequence[str] = (END_OF_TEXT,)) -> None:
    """Train a byte-level BPE tokenizer with these special tokens and save it as `tokenizer.json`."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(path))


def _files(wanted: Callable[[str], bool]) -> list[str]:
    paths = sysconfig.get_paths()
    roots = {os.path.realpath(paths[name]) for name in ("stdlib", "purelib", "platlib")}
    found = {
        os.path.join(folder, name) for root in roots for folder, _, names in os.walk(root) for name in names if wanted(name)
    }
    return sorted(found)


def _is_source(name: str) -> bool:
    return name.endswith(".py")


def _is_document(name: str) -> bool:
    return name.endswith(_DOCUMENTS) or name.partition(".")[0] in _DOCUMENT_NAMES


def _spread(paths: list[str]) -> Iterator[str]:
    """All paths, neighbours far apart: a part of them is then a little of everything. 7919 is prime."""
    size = len(paths)
    step = 7919 if size % 7919 else 7907
    for number in range(size):
        yield paths[number * step % size]


def _read(path: str) -> str:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""  # not a text, or not ours to read: the demo takes another one
    return text if len(text) >= _SHORTEST else ""


def _docstrings(source: str) -> str:
    """The longer docstrings of a module, one after the other."""
    found = [inspect.cleandoc(text) for text in _DOCSTRING.findall(source)]
    return "\n\n".join(text for text in found if len(text) >= _SHORTEST)


def _records(path: str, text: str) -> Iterator[Record]:
    place = "/".join(Path(path).parts[-3:])
    start = 0
    while start < len(text):
        stop = min(start + _LONGEST, len(text))
        border = text.rfind("\n", start, stop) + 1 if stop < len(text) else stop
        stop = border if border > start else stop
        yield {"path": place, "text": text[start:stop]}
        start = stop


def _up_to(limit: int, records: Iterable[Record]) -> Iterator[Record]:
    total = 0
    for record in records:
        if total >= limit:
            return
        total += len(record["text"].encode())
        yield record
