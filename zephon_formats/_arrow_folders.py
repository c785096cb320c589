"""Folders of Arrow files that Hugging Face `datasets` wrote: which files are data, and in which order.

`Dataset.save_to_disk` writes `data-00000-of-00002.arrow`, … with `state.json` (the files in order) and `dataset_info.json`;
`DatasetDict.save_to_disk` writes such a folder per split, and `dataset_dict.json`. The cache of `load_dataset` holds
`NAME-SPLIT-00000-of-00002.arrow` for all splits and `cache-….arrow` for what was computed from them, with `dataset_info.json`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from zephon.plugin import DataError, FileInfo, RecipeError, Store, at

_STATE, _INFO, _DICT = "state.json", "dataset_info.json", "dataset_dict.json"


def data_files(store: Store, files: Sequence[FileInfo], suffixes: tuple[str, ...]) -> list[FileInfo]:
    """The data files among `files`, in their order: that of `state.json` where there is one.

    Raises:
        RecipeError: the files are of several splits, or results of `map` and `filter` lie beside the data.
        DataError: a file that `state.json` lists is missing, or it lists an indices mapping.
    """
    folders: dict[str, dict[str, FileInfo]] = {}
    for file in files:
        folder, _, name = file.path.rpartition("/")
        folders.setdefault(folder, {})[name] = file
    for folder, content in folders.items():
        if _DICT in content:
            _check_splits(store, content[_DICT], folder, folders)
    made: list[FileInfo] = []
    for content in folders.values():
        mine = {name: file for name, file in content.items() if name.lower().endswith(suffixes)}
        if _STATE in content:
            made += _saved(store, content[_STATE], content)
        elif _INFO in content and mine:
            _check_cache(store, content[_INFO], mine)
            made += mine.values()
        else:
            made += mine.values()
    return made


def _load(store: Store, file: FileInfo) -> dict[str, Any]:
    with at(shard=file.path):
        try:
            found = json.loads(store.read(file.path, 0, file.size))
        except ValueError as error:
            raise DataError(f"{file.path!r} is not valid JSON: {error}") from None
        if not isinstance(found, dict):
            raise DataError(f"{file.path!r} must hold a JSON object")
        return found


def _check_splits(store: Store, file: FileInfo, folder: str, folders: dict[str, Any]) -> None:
    splits = _load(store, file).get("splits") or []
    present = [str(s) for s in splits if f"{folder}/{s}" in folders]
    if len(present) > 1:
        raise RecipeError(
            f"{folder!r} holds the splits {', '.join(present)} of a Hugging Face DatasetDict; a data set is one of them",
            hint=f"give the path of one: {folder}/{present[0]}",
        )


def _saved(store: Store, file: FileInfo, content: dict[str, FileInfo]) -> list[FileInfo]:
    """The files that a `state.json` lists, in its order."""
    state = _load(store, file)
    # before version 1.18 (2022) a selection or shuffle was saved as row numbers into the whole data
    mapping = state.get("_indices_files") or state.get("_indices_data_files")
    if mapping:
        raise DataError(
            f"the data set at {file.path!r} was saved with an indices mapping (a selection or shuffle kept as row numbers)",
            hint="write it out again: datasets.load_from_disk(old).flatten_indices().save_to_disk(new)",
        )
    listed = state.get("_data_files")
    if not isinstance(listed, list) or not all(isinstance(f, dict) and isinstance(f.get("filename"), str) for f in listed):
        raise DataError(f"{file.path!r} lists no data files; it is not a state.json of Hugging Face datasets")
    names = [f["filename"] for f in listed]
    missing = [name for name in names if name not in content]
    if missing:
        raise DataError(
            f"{file.path!r} lists {len(names)} data files; {len(missing)} of them are missing, first {missing[0]!r}",
            hint="copy the folder again",
        )
    return [content[name] for name in names]


def _check_cache(store: Store, file: FileInfo, mine: dict[str, FileInfo]) -> None:
    """Refuse a cache folder of `load_dataset` that holds more than one data set's rows."""
    computed = sorted(name for name in mine if name.startswith("cache-"))
    if computed and len(computed) < len(mine):
        raise RecipeError(
            f"the folder of {file.path!r} holds results of map or filter ({computed[0]}, …) beside the data they were made from",
            hint="give the files of one of them, for example with a glob, or use datasets' save_to_disk",
        )
    splits = _load(store, file).get("splits")
    if not isinstance(splits, dict):
        return
    found = [s for s in splits if any(re.search(rf"-{re.escape(s)}(-\d+-of-\d+)?\.arrow$", name) for name in mine)]
    if len(found) > 1:
        raise RecipeError(
            f"the folder of {file.path!r} holds the splits {', '.join(found)}; a data set is one of them",
            hint=f"give a glob: {file.path.rpartition('/')[0]}/*-{found[0]}*.arrow",
        )
