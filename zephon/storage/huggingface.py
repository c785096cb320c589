"""Data sets of the Hugging Face hub: `hf://org/name[@revision]/[config/]split`.

The files of a split are found as the library `datasets` finds them (docs: "Structure your repository"): by the `configs` of the
data set's card; else by directory and file names; else in the Parquet export, branch `refs/convert/parquet`. An address whose
path is there in the repository, or that is a pattern, means itself; `hf://datasets/org/name/path` always does.
The revision is looked up once, and the files' paths carry the commit: a data set that is updated during a run stays as it was.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zephon.errors import RecipeError
from zephon.plugin import FileInfo
from zephon.storage.conditional import Answer
from zephon.storage.faults import Fault
from zephon.storage.names import is_hidden
from zephon.storage.remote import FsspecStore
from zephon.storage.retry import FailedError
from zephon.storage.splits import KEYWORDS

_EXPORT = "refs/convert/parquet"
_SPECIAL = re.compile(r"^(refs/(?:convert/[^/]+|pr/[0-9]+))(?:/|$)")
_KINDS = ("datasets/", "spaces/", "models/", "buckets/")
_NOT_DATA = {"README.md", "config.json", "dataset_info.json", "dataset_infos.json", "dummy_data.zip", "dataset_dict.json"}
_SHARDED = re.compile(r"^data/(.+)-[0-9]{5}-of-[0-9]{5}.*\.")
_PATTERN = re.compile(r"[*?\[{]")


@dataclass(frozen=True)
class _Repository:
    """A data set at one commit."""

    name: str
    commit: str
    configs: tuple[Mapping[str, Any], ...]

    @property
    def root(self) -> str:
        """Its directory in HfFileSystem."""
        return f"datasets/{self.name}@{self.commit}"


class HubStore(FsspecStore):
    """Files of the Hugging Face hub."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._repositories: dict[tuple[str, str | None], _Repository] = {}

    def address(self, inner: str) -> str:
        """`hf://org/name[@revision]/rest` as the path of a data set at its present commit.

        Raises:
            RecipeError: no such data set or revision.
            DataError: the hub can't be asked.
        """
        if inner.startswith(_KINDS) and not inner.startswith("datasets/"):
            return self._url(inner.removeprefix("models/"))
        name, revision, rest = _parts(inner.removeprefix("datasets/"))
        found = self._repository(name, revision)
        return self._url(f"{found.root}/{rest}" if rest else found.root)

    def exists(self, path: str) -> bool:
        return self.look(path) is not None

    def look(self, path: str) -> Sequence[FileInfo] | None:
        """See `ListedStore.look`; where nothing has that path, the files of the split that it names.

        Raises:
            RecipeError: neither; it says which configs and splits there are.
        """
        inner = self._inner(path)
        if not inner.startswith("datasets/"):
            return super().look(path)
        name, revision, rest = _parts(inner.removeprefix("datasets/"))
        if _PATTERN.search(rest):
            return super().look(path)
        found = self._repository(name, revision)
        words = [word for word in rest.split("/") if word]
        if len(words) <= 2:
            declared = self._declared(found, words)
            if declared:
                return declared
        if words:
            there = super().look(path)
            if there is not None:
                return there
        if len(words) > 2:
            return None
        return self._by_name(found, words) or self._export(found, words)

    # --------------------------------------------------------------------------------------------------- the three ways

    def _declared(self, found: _Repository, words: Sequence[str]) -> Sequence[FileInfo]:
        """By the card's `configs`."""
        for config, split in _readings(words, [str(c.get("config_name", "default")) for c in found.configs]):
            entry = next(c for c in found.configs if str(c.get("config_name", "default")) == config)
            patterns = _patterns(entry, split)
            if patterns:
                files = [file for pattern in patterns for file in self._matching(found, entry.get("data_dir"), pattern)]
                if files:
                    return sorted(set(files), key=lambda file: file.path)
        return []

    def _matching(self, found: _Repository, folder: Any, pattern: str) -> Sequence[FileInfo]:
        if pattern.startswith("hf://"):
            path = self.address(self._inner(pattern))
        else:
            path = self._url("/".join(part.strip("/") for part in (found.root, str(folder or ""), pattern) if part.strip("/")))
        if not _PATTERN.search(pattern):
            return super().look(path) or []
        return [file for files in self.match(path, lambda _: True) for file in files]

    def _by_name(self, found: _Repository, words: Sequence[str]) -> Sequence[FileInfo]:
        """By directory and file names; a config is a directory then."""
        files = self._below(self._url(found.root))
        start = len(self._url(found.root)) + 1
        paths = {file.path[start:]: file for file in files if not _is_no_data(file.path[start:])}
        readings = [("", words[0] if words else "train")] if len(words) < 2 else [(words[0], words[1])]
        if len(words) == 1:
            readings.append((words[0], "train"))
        elif words and words[0] == "default" and not found.configs:
            readings.append(("", words[1]))  # the name that `datasets` gives the only config where the card names none
        for config, split in readings:
            start_inside = len(config) + 1 if config else 0
            inside = {
                path[start_inside:]: file for path, file in paths.items() if path.startswith(config + "/" if config else "")
            }
            chosen = _of_split(inside, split, alone=split == "train")
            if chosen:
                return sorted((inside[path] for path in chosen), key=lambda file: file.path)
        return []

    def _export(self, found: _Repository, words: Sequence[str]) -> Sequence[FileInfo]:
        """The hub's own Parquet copy: `config/split/0000.parquet`."""
        try:
            export = self._repository(found.name, _EXPORT)
        except RecipeError:
            raise self._nothing(found, words, ()) from None
        files = self._below(self._url(export.root))
        start = len(self._url(export.root)) + 1
        splits: dict[tuple[str, str], list[FileInfo]] = {}
        for file in files:
            parts = file.path[start:].split("/")
            if len(parts) == 3:
                splits.setdefault((parts[0], parts[1].removeprefix("partial-")), []).append(file)
        configs = sorted({config for config, _ in splits})
        for reading in _readings(words, configs):
            if reading in splits:
                return splits[reading]
        raise self._nothing(found, words, [f"{config}/{split}" for config, split in sorted(splits)])

    def _nothing(self, found: _Repository, words: Sequence[str], there: Iterable[str]) -> RecipeError:
        declared = [f"{config.get('config_name', 'default')}/{split}" for config in found.configs for split in _splits(config)]
        known = ", ".join([*declared, *there]) or "no config that could be recognised"
        return RecipeError(
            f"data set {found.name!r} of the hub has no path, split or config/split {'/'.join(words) or 'train'!r}",
            hint=f"it has {known}",
        )

    # ------------------------------------------------------------------------------------------------------- the hub

    def _repository(self, name: str, revision: str | None) -> _Repository:
        known = self._repositories.get((name, revision))
        if known is not None:
            return known

        def ask(fs: Any) -> _Repository:
            from huggingface_hub import HfApi  # noqa: PLC0415 - comes with the file system

            api = HfApi(endpoint=fs.endpoint, token=fs.token)
            info = api.dataset_info(name, revision=revision, timeout=self.options.read_timeout_s, expand=["sha", "cardData"])
            card: Any = info.card_data
            configs = (card.to_dict().get("configs") or []) if card is not None else []
            return _Repository(name, str(info.sha), tuple(c for c in configs if isinstance(c, Mapping)))

        place = f"hf://datasets/{name}" + (f"@{revision}" if revision else "")
        try:
            made = self._asked(place, ask)
        except FailedError as error:
            if error.fault is Fault.GONE:
                raise RecipeError(
                    f"{place!r} does not exist on the hub, or may not be seen: {error}",
                    hint="hf://org/name[@revision]/[config/]split; private data sets need a token",
                ) from error
            raise self._failure(place, error, "can't be looked up") from error
        self._repositories[name, revision] = self._repositories[name, made.commit] = made
        return made

    def _find(self, path: str, *, fresh: bool = False) -> Mapping[str, Any] | None:
        # HfFileSystem appends to its cache of listings without a lock: two threads would see files twice
        with self.client.listing:
            return super()._find(path, fresh=fresh)

    def _listed(self, path: str, ask: Callable[[Any], Any]) -> Any:
        with self.client.listing:
            return super()._listed(path, ask)

    def _fetch(self, fs: Any, inner: str, start: int, stop: int) -> Answer:
        known = self._remembered(self._url(inner))
        size = known.size if known is not None else None
        # without fsspec's block cache, which would read 5 MB for each range
        with fs.open(inner, "rb", cache_type="none", **({} if size is None else {"size": size})) as file:
            file.seek(start)
            return bytes(file.read(stop - start)), True  # at a commit, which doesn't change


def _parts(inner: str) -> tuple[str, str | None, str]:
    """`org/name[@revision]/rest` → name, revision, rest. Raises `RecipeError`."""
    before, at, after = inner.partition("@")
    if at and before.count("/") <= 1:
        special = _SPECIAL.match(after)
        revision = special.group(1) if special else after.split("/")[0]
        return before, revision.replace("%2F", "/"), after[len(revision) :].strip("/")
    words = [word for word in inner.split("/") if word]
    if len(words) < 2:
        raise RecipeError(
            f"'hf://{inner}' names no data set", hint="hf://org/name[@revision]/[config/]split, or hf://datasets/org/name/path"
        )
    return "/".join(words[:2]), None, "/".join(words[2:])


def _readings(words: Sequence[str], configs: Sequence[str]) -> list[tuple[str, str]]:
    """What `config/split`, one word or nothing can mean: (config, split), the likeliest first."""
    default = "default" if "default" in configs else configs[0] if len(configs) == 1 else None
    if len(words) == 2:
        return [(words[0], words[1])] if words[0] in configs else []
    found = []
    if default is not None:
        found.append((default, words[0] if words else "train"))
    if words and words[0] in configs:
        found.append((words[0], "train"))
    return found


def _patterns(config: Mapping[str, Any], split: str) -> list[str]:
    """The patterns of one split in a card's config: a string, a list of them, or a list of `{split, path}`."""
    data = config.get("data_files")
    if data is None:
        return []
    found: list[str] = []
    for entry in data if isinstance(data, list) else [data]:
        if isinstance(entry, str) and split == "train":
            found.append(entry)
        elif isinstance(entry, Mapping) and str(entry.get("split", "train")) == split:
            paths = entry.get("path", [])
            found += [paths] if isinstance(paths, str) else [str(p) for p in paths]
    return found


def _splits(config: Mapping[str, Any]) -> list[str]:
    data = config.get("data_files")
    entries = data if isinstance(data, list) else [data]
    return [str(entry.get("split", "train")) for entry in entries if isinstance(entry, Mapping)]


def _is_no_data(path: str) -> bool:
    return is_hidden(path) or path.rsplit("/", 1)[-1] in _NOT_DATA or path.endswith((".md", ".py", "LICENSE"))


def _of_split(paths: Iterable[str], split: str, *, alone: bool) -> list[str]:
    """The paths that belong to a split, by the first rule that finds any: `data/train-00000-of-00001.x`, a directory, a file name.

    `alone`: where no name speaks of any split, all is "train".
    """
    every = list(paths)
    sharded = [path for path in every if (found := _SHARDED.match(path)) and found.group(1) == split]
    if sharded or any(_SHARDED.match(path) for path in every):
        return sharded
    words = KEYWORDS.get(split, (split,))
    for rule in (_in_folder, _in_name):
        chosen = [path for path in every if any(rule(path, word) for word in words)]
        if chosen:
            return chosen
        others = [word for name, group in KEYWORDS.items() if name != split for word in group]
        if any(rule(path, word) for path in every for word in others):
            return []
    return every if alone else []


def _in_folder(path: str, word: str) -> bool:
    return any(_speaks_of(part, word) for part in path.split("/")[:-1])


def _in_name(path: str, word: str) -> bool:
    return _speaks_of(path.rsplit("/", 1)[-1], word)


def _speaks_of(name: str, word: str) -> bool:
    """Whether the word stands by itself in a name: `my-train_2.csv` speaks of `train`, `trainer.csv` doesn't."""
    return re.search(rf"(?:^|[-._ 0-9]){re.escape(word)}(?:[-._ 0-9]|$)", name) is not None
