"""Which names are data, and where things go that are kept beside it."""

from __future__ import annotations

import hashlib
import os
import re

from zephon.notes import default_cache_dir

INDEX_SUFFIX = ".zidx"
"""Files that readers keep beside the data (indices, unpacked copies) end so, and are never data themselves."""


def is_hidden(path: str) -> bool:
    """Whether a part of this relative path is hidden, or the file is a reader's index."""
    return any(part[:1] in (".", "_") for part in path.split("/")) or path.endswith(INDEX_SUFFIX)


def base_name(path: str) -> str:
    """The last part of a path or URL."""
    return path.rstrip("/").rsplit("/", 1)[-1]


def plain_name(path: str, length: int = 60) -> str:
    """The end of the last part, in letters that every file system takes."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", base_name(path))[-length:]


def digest_of(*parts: str) -> str:
    """A name for these strings, 32 hexadecimal digits; their borders count."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") if len(parts) > 1 else b"")
        digest.update(data)
    return digest.hexdigest()


def cached_name(cache_dir: str | None, path: str, suffix: str) -> str:
    """A file in the cache directory, keyed by the whole path: `x/0.jsonl` and `y/0.jsonl` never meet."""
    readable = re.sub(r"[^A-Za-z0-9._-]", "_", base_name(path))[:60]
    return os.path.join(cache_dir or default_cache_dir(), f"{readable}-{digest_of(path)}{suffix}")
