"""Which files are a data set's, and whose format they are: one rule for a file, a directory, a glob, or several of them.

1. Hidden files are left out (see `zephon.storage.expand`), and so are notes (README, LICENSE, …) unless they are all there is or
   named by the user.
2. An index file that a reader knows makes everything below its directory that reader's; elsewhere the longest suffix decides. Readers
   that share an index file or a suffix are asked (`Reader.claims`).
3. What is left must be one reader's. Markdown and word lists beside data of another format don't count; anything else does.
"""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from zephon.errors import DataError, PluginError, RecipeError, Where, ZephonError, unknown, wrap
from zephon.keys import key
from zephon.plugin import FileInfo, OpenShard, Reader, Shard, Store
from zephon.registry import available, load, noted
from zephon.shards import Looks, Shards
from zephon.storage import ListedStore, StoreOptions, expand, open_store
from zephon.storage.local import is_another, look_at
from zephon.storage.splits import count_splits

_log = logging.getLogger("zephon.discovery")

_NOTE = re.compile(
    r"(readme|licen[cs]e|copying|notice|changelog|citation|contributing|authors|code_of_conduct|dataset_?card|requirements"
    r"|(md5|sha1|sha256|sha512|check)sums?)([._-][\w.-]*)?",
    re.IGNORECASE,
)
_NOTE_END = re.compile(r"[^.]*(\.[0-9]+)*(\.(md|txt|rst|html?|pdf|cff|bib|ya?ml))?", re.IGNORECASE)
_WEAK = re.compile(r".*\.(md|rst)|(classes|labels|vocab|merges)\.txt", re.IGNORECASE)
_METADATA = frozenset(
    f"{name}.json"
    for name in (
        *("dataset_info", "dataset_infos", "dataset_dict", "state", "croissant", "features", "schema", "stats", "statistics"),
        *("config", "index", "info", "manifest", "meta", "metadata"),
    )
)
"""They describe data. Readers are given them, but their suffix makes no data of them."""


_ASK = 64


def _name(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def is_note(path: str) -> bool:
    """Whether a file's name says that it is for people and not data: README.md, LICENSE, CITATION.cff, SHA256SUMS, …"""
    return bool(_NOTE.fullmatch(_name(path)) and _NOTE_END.fullmatch(_name(path)))


@dataclass
class _Claim:
    """What one reader has among the files."""

    reader: type[Reader]
    directories: set[str]
    """With an index file of this reader."""
    files: int = 0
    weak: int = 0
    example: str = ""


def detect(store: Store, files: Sequence[FileInfo], place: str) -> type[Reader]:
    """The one reader whose files these are, by the rule above.

    Raises:
        RecipeError: none fits, or several do (with what was found).
    """
    claims, broken = _candidates(store, files)
    owner = _Owners(claims)
    unknown_files: Counter[str] = Counter()
    shared: Sequence[_Claim] = ()  # the claims to the first file that has several
    for file in files:
        mine = owner.of(file.path)
        shared = shared or (mine if len(mine) > 1 else ())
        for claim in mine:
            claim.files += 1
            claim.weak += bool(_WEAK.fullmatch(_name(file.path)))
            claim.example = claim.example or file.path
        if not mine:
            unknown_files[os.path.splitext(_name(file.path))[1] or "no suffix"] += 1
    found = [claim for claim in claims if claim.files]
    found = [claim for claim in found if claim.weak < claim.files] or found
    if len(found) == 1:
        if unknown_files:
            _log.info("%s: read as %s; left aside: %s", place, found[0].reader.name, _counts(unknown_files))
        return found[0].reader
    names = [claim.reader.name for claim in shared if any(claim is one for one in found)]
    if len(names) > 1:
        raise RecipeError(
            f"{' and '.join(names)} both read files such as {shared[0].example!r}",
            hint=f"say which is meant: {' or '.join(f'format={name!r}' for name in names)}",
        )
    if found:
        listed = ", ".join(f"{c.files} {c.reader.name} (such as {c.example!r})" for c in found)
        rest = f"; and files of no format: {_counts(unknown_files)}" if unknown_files else ""
        raise RecipeError(f"{place} mixes formats: {listed}{rest}", hint="give format=… or a narrower path")
    notes = "".join(f"\n  {b}" for b in broken)
    one_a_line = ".json files: format='jsonl' if each line of them is an object. " if ".json" in unknown_files else ""
    raise RecipeError(
        f"no reader knows the {len(files)} files at {place} ({_counts(unknown_files)}), for example {files[0].path!r}{notes}",
        hint=f"{one_a_line}give format=…; installed: {', '.join(available('zephon.formats'))}",
    )


def _marks(reader: type[Reader]) -> list[list[str]]:
    """By what a reader's files are known."""
    return [list(reader.suffixes), list(reader.index_files)]


def _may_have(name: str, files: Sequence[FileInfo]) -> bool:
    """Whether a reader has an index file or a suffix here; of most readers that is known without importing them."""
    suffixes, index_files = noted("zephon.formats", name, _marks)
    return any(f.path.lower().endswith(tuple(suffixes)) or _name(f.path) in index_files for f in files)


def _candidates(store: Store, files: Sequence[FileInfo]) -> tuple[list[_Claim], list[str]]:
    """The readers that have an index file or a suffix here and claim it; and what is wrong with those that don't load."""
    claims: list[_Claim] = []
    broken: list[str] = []
    for name in available("zephon.formats"):
        try:
            if not _may_have(name, files):
                continue
            reader = load("zephon.formats", name)
        except PluginError as error:
            broken.append(str(error))
            continue
        directories = {f.path[: -len(_name(f.path))] for f in files if _name(f.path) in reader.index_files}
        if not directories and not any(_suffix(reader, f.path) for f in files):
            continue
        try:
            claimed = reader.claims(store, files)
        except (ZephonError, OSError):  # the files or the store, not the reader
            raise
        except Exception as error:  # noqa: BLE001 - a broken plug-in must not break the others
            (whose,) = available("zephon.formats")[name]
            broken.append(f"{whose.target} of {whose.distribution} fails to say whether it knows files: {wrap(error, Where())}")
            _log.warning("%s", broken[-1])
            continue
        if claimed:
            claims.append(_Claim(reader, directories))
    times = Counter(directory for claim in claims for directory in claim.directories)
    for directory in sorted(d for d, count in times.items() if count > 1)[:_ASK]:
        # formats whose index files have one name side by side: ask again, directory by directory, to tell which is whose
        below = [f for f in files if f.path.startswith(directory)]
        for claim in claims:
            if directory in claim.directories and not claim.reader.claims(store, below):
                claim.directories.discard(directory)
    return claims, broken


def _suffix(reader: type[Reader], path: str) -> int:
    """The length of the longest suffix of this reader that the name ends in; 0: none, or it is the name of a metadata file."""
    lower = path.lower()
    if not lower.endswith(reader.suffixes) or _name(path) in _METADATA:
        return 0
    return max((len(s) for s in reader.suffixes if lower.endswith(s)), default=0)


class _Owners:
    """Whose a file is: the readers' with an index file in the nearest directory above it; else those' with the longest suffix."""

    def __init__(self, claims: Sequence[_Claim]) -> None:
        self._claims = claims
        self._above: dict[str, list[_Claim]] = {"": []}
        self._any = any(claim.directories for claim in claims)

    def of(self, path: str) -> list[_Claim]:
        above = self._index_above(path[: -len(_name(path))]) if self._any else []
        if above:
            return above
        lengths = [(_suffix(claim.reader, path), claim) for claim in self._claims]
        longest = max((length for length, _ in lengths), default=0)
        return [claim for length, claim in lengths if length == longest] if longest else []

    def _index_above(self, directory: str) -> list[_Claim]:
        """Of a directory (with its slash), remembered."""
        found = self._above.get(directory)
        if found is None:
            found = [claim for claim in self._claims if directory in claim.directories]
            if not found:
                found = self._index_above(directory[: directory.rfind("/", 0, -1) + 1])
            self._above[directory] = found
        return found


def _counts(suffixes: Counter[str]) -> str:
    listed = [f"{count} × {suffix}" for suffix, count in suffixes.most_common(6)]
    return ", ".join(listed) + (", …" if len(suffixes) > 6 else "")


class FileShards(Shards):
    """Shards that a reader finds among files."""

    def __init__(
        self,
        name: str,
        paths: Sequence[str],
        fmt: str | None,
        options: Mapping[str, Any],
        *,
        storage_options: Mapping[str, Any] | None = None,
        io_options: StoreOptions | Mapping[str, Any] | None = None,
        cache_dir: str | None = None,
    ) -> None:
        self.name = name
        self.io_options = StoreOptions.from_any(io_options)
        self._own_io_options = io_options is not None
        self.paths = list(paths)
        self.fmt = fmt
        self.options = dict(options)
        self.storage_options = storage_options
        self.cache_dir = cache_dir
        self._path_of: dict[str, int] = {}
        """Which of the paths each file was found at."""
        if fmt is not None:
            self.reader_class = load("zephon.formats", fmt)
            self._make_reader(self.reader_class)

    def _make_reader(self, reader: type[Reader]) -> Reader:
        known = list(getattr(reader, "__dataclass_fields__", {}))
        for option in self.options:
            if option not in known:
                from_path = [
                    "fmt",
                    "format",
                    "columns",
                    "rows",
                    "fraction",
                    "filter",
                    "storage_options",
                    "io_options",
                    "cache_dir",
                ]
                what = f"option of data set {self.name!r} or its reader {reader.name!r}"
                raise RecipeError(unknown(what, option, known + from_path))
        return reader(**self.options)

    @cached_property
    def _found(self) -> tuple[ListedStore, Reader, list[FileInfo]]:
        store, files = self._files()
        place = ", ".join(self.paths)
        reader = self._make_reader(self.reader_class if self.fmt is not None else detect(store, files, place))
        # a reader of all `.json` must not take these for data
        data = [
            f for f in files if _name(f.path) not in _METADATA - {*reader.index_files} or not f.path.endswith(reader.suffixes)
        ]
        return store, reader, data or files

    def _files(self) -> tuple[ListedStore, list[FileInfo]]:
        """All files at the paths, each once, less the notes that the user didn't name."""
        files: dict[str, FileInfo] = {}
        named: set[str] = set()
        store: ListedStore | None = None
        self._path_of.clear()
        for number, path in enumerate(self.paths):
            here, inner = open_store(path, self.storage_options, self.cache_dir, options=self.io_options)
            if store is not None and (type(here) is not type(store) or getattr(here, "fs", None) != getattr(store, "fs", None)):
                raise RecipeError(f"data set {self.name!r} has paths in different stores", hint="make two data sets of it")
            store = store or here
            for file in expand(here, inner):
                files.setdefault(file.path, file)  # a file that two of the paths name is one shard
                self._path_of.setdefault(file.path, number)
                if file.path == inner:
                    named.add(inner)
        assert store is not None
        found = [f for f in files.values() if f.path in named or not is_note(f.path)]
        return store, found or list(files.values())

    def use_io_options(self, options: StoreOptions | Mapping[str, Any]) -> bool:
        """Take these options, unless the data set was given some; whether anything changed."""
        wanted = StoreOptions.from_any(options)
        if self._own_io_options or wanted == self.io_options:
            return False
        self.io_options = wanted
        vars(self).pop("_found", None)
        return True

    @property
    def has_cache(self) -> bool:
        """Whether shards are fetched into a cache on local disk."""
        return self.io_options.cache.enabled and self._found[0].local(self._found[2][0].path) is None

    def prefetch(self, shards: Sequence[Shard]) -> None:
        """See `ListedStore.prefetch`."""
        self._found[0].prefetch([shard.path for shard in shards])

    def cancel_prefetch(self) -> None:
        """See `ListedStore.cancel_prefetch`."""
        if "_found" in vars(self):
            self._found[0].cancel_prefetch()

    def list(self) -> Sequence[Shard]:
        """See `Shards`."""
        store, reader, files = self._found
        shards = reader.shards(store, files)
        self.check_limits(shards)
        self._check_splits(shards)
        return shards

    def _check_splits(self, shards: Sequence[Shard]) -> None:
        """Refuse one path that stands for the shards of several splits: nobody wants to train on the test data.

        Where some shards belong to none, the words may mean something else, and it is only said. Raises `RecipeError`.
        """
        for number, path in enumerate(self.paths):
            found = count_splits(shard.path for shard in shards if self._path_of.get(shard.path) == number)
            named = {split: paths for split, paths in found.items() if split is not None}
            if len(named) < 2:
                continue
            listed = ", ".join(f"{split} ({len(p)} shards, such as {p[0]!r})" for split, p in sorted(named.items()))
            if None not in found:
                raise RecipeError(
                    f"{path!r} holds several splits: {listed}; read as one data set, they would all be trained on",
                    hint="give the path of one split, a pattern such as …/train-*, or a list of paths if you mean all of them",
                )
            _log.warning("data set %r: %r seems to hold several splits: %s; all are read", self.name, path, listed)

    def check_limits(self, shards: Sequence[Shard]) -> None:
        """Refuse a shard cache that can't hold one of these. Raises `RecipeError`."""
        self._found[0].check_limits(FileInfo(s.path, s.size, s.etag) for s in shards)

    def open(self, shard: Shard) -> OpenShard:
        """See `Shards`."""
        store, reader, _ = self._found
        return reader.open(store, shard)

    def look(self, shard: Shard) -> Looks:
        """See `Shards`: local files; what a remote store gives, it has compared with what it listed."""
        store, reader, _ = self._found
        if store.local(shard.path) is None:
            return ()
        return tuple(look_at(path) for name in reader.paths(shard) if (path := store.local(name)) is not None)

    def check(self, shard: Shard, looked: Looks) -> None:
        """See `Shards`."""
        if not looked:
            return
        store, reader, _ = self._found
        for name, before in zip(reader.paths(shard), looked, strict=True):
            now = look_at(str(store.local(name)))
            if is_another(before, now):
                sizes = f": it had {before[0]} bytes, and has {now[0]} now" if before[0] != now[0] else ""
                raise DataError(
                    f"{name!r} was changed or replaced after it was listed{sizes}",
                    hint="data must not change during a run; start again",
                )

    @property
    def splittable(self) -> bool:
        """See `Shards`."""
        return self._found[1].splittable

    def recipe(self) -> dict[str, Any]:
        """See `Shards`."""
        return {"format": self._found[1].name, "options": {k: _plain(v) for k, v in self.options.items()}}

    def keep_at(self, shards: Sequence[Shard], what: str) -> str | None:
        """See `Shards`: a file in the cache directory, keyed by the shards' versions (entity tags, or local times of change)."""
        store = self._found[0]
        parts: list[int | str] = [what, repr(self.recipe())]
        for shard in shards:
            version = "".join(repr(look[:3]) for look in self.look(shard)) or shard.etag
            if not version:
                return None  # a file that was replaced by one of its size would not be noticed
            parts += [shard.path, shard.size, shard.etag, version, repr(sorted(shard.extra.items()))]
        return store.sidecar(shards[0].path, f".{key(*parts):016x}.zidx")[-1] if shards else None


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | type(None)) else repr(value)
