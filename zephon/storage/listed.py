"""What the core asks of a store beyond what readers do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from zephon.plugin import FileInfo, Store


class ListedStore(Store, Protocol):
    """A store that `expand` can look things up in, and that can fetch ahead."""

    def exists(self, path: str) -> bool:
        """Whether there is a file or directory of exactly that name. Raises `RecipeError` where the name can't be one."""
        ...

    def is_file(self, path: str) -> bool:
        """Whether it is a file (or a link to one)."""
        ...

    def glob(self, pattern: str) -> list[str]:
        """The files and directories that match, sorted; `**` matches any depth."""
        ...

    def look(self, path: str) -> Sequence[FileInfo] | None:
        """`files(path)` where `path` exists, else None; a single look-up for a file."""
        ...

    def match(self, pattern: str, keep: Callable[[str], bool]) -> Sequence[Sequence[FileInfo]]:
        """The files of each thing that `glob` finds and whose name is to be kept, without a look-up per file."""
        ...

    def check_limits(self, files: Iterable[FileInfo]) -> None:
        """Raises `RecipeError` where the shard cache can't hold the largest of these files (or shards)."""
        ...

    def prefetch(self, paths: Iterable[str]) -> None:
        """Fetch these files into the shard cache, in this order, in the background. Returns at once and never raises; without a
        cache, or with enough waiting already, it does nothing."""
        ...

    def cancel_prefetch(self) -> None:
        """Forget what waits, stop what runs, and wait until it has stopped."""
        ...
