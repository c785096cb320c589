"""`hf://` against a local hub, in processes of their own, since the client reads HF_ENDPOINT once."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storage.hub import HubHandler, commit_of, put
from storage.servers import handler_server
from thoroughness import examples

ASK = """
import json, os, sys, warnings
warnings.simplefilter("ignore")
from zephon.errors import ZephonError
from zephon.storage import CacheOptions, StoreOptions, expand, open_store

def ask(address, options):
    store, inner = open_store(address, options=options)
    files = expand(store, inner)
    with store.on_disk(files[0].path) as path:
        assert open(path, "rb").read() == store.read(files[0].path)
    with store.open(files[0].path) as file:
        assert file.read() == store.read(files[0].path)
    return {f.path: [f.size, f.etag, store.read(f.path, 0, 5).decode(), store.read(f.path, 3).decode()[:9]] for f in files}

for line in sys.stdin:
    addresses, cache, token = json.loads(line)
    os.environ["HF_TOKEN"] = token
    options = StoreOptions(retries=1, first_wait_s=0.01, cache=CacheOptions.from_any(cache))
    answers = []
    for address in addresses:
        try:
            answers.append(ask(address, options))
        except ZephonError as error:
            answers.append(f"{type(error).__name__}: {error}")
    print(json.dumps(answers), flush=True)
"""


class Hub:
    """A hub, and a process that reads from it."""

    def __init__(self, folder: Path, handler: Any, port: int) -> None:
        self.folder = folder
        self.handler = handler
        env = {**os.environ, "HF_ENDPOINT": f"http://127.0.0.1:{port}", "HF_HOME": str(folder.parent / "home")}
        self.client = subprocess.Popen(
            [sys.executable, "-c", ASK],
            env=env,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def ask(self, *addresses: str, cache: Any = None, token: str = "") -> list[Any]:
        assert self.client.stdin is not None
        assert self.client.stdout is not None
        self.client.stdin.write(json.dumps([addresses, cache, token]) + "\n")
        self.client.stdin.flush()
        line = self.client.stdout.readline()
        if not line:
            raise AssertionError(self.client.communicate()[1])
        answers: list[Any] = json.loads(line)
        return answers

    def names(self, *addresses: str, **more: Any) -> list[Any]:
        """The files' paths in their repository, or the error."""
        return [
            answer if isinstance(answer, str) else [path.split("@", 1)[1].split("/", 1)[1] for path in answer]
            for answer in self.ask(*addresses, **more)
        ]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    folder = tmp_path_factory.mktemp("hub") / "repos"
    handler: Any = type("Handler", (HubHandler,), {"folder": folder, "cards": {}, "log": []})
    with handler_server(handler) as port:
        made = Hub(folder, handler, port)
        yield made
        made.client.kill()
        made.client.communicate()


# each test has an organisation of its own: t0/…, t1/…


def shards(*names: str) -> dict[str, bytes]:
    return {name: f"<{name}>".encode() * 100 for name in names}


def test_a_split_is_found_as_the_library_datasets_finds_it(hub: Hub) -> None:
    put(hub.folder, "t0/pushed", shards("data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet", "README.md"))
    put(hub.folder, "t0/pushed", shards("data/test-00000-of-00001.parquet", "data/trainer-00000-of-00001.parquet"))
    put(
        hub.folder,
        "t0/named",
        shards("train.csv", "my-test.csv", "validation_1.csv", "notes.md", "src/x.py", ".hidden/train.csv"),
    )
    put(hub.folder, "t0/folders", shards("train/a.jsonl", "train/b.jsonl", "dev/c.jsonl"))
    put(hub.folder, "t0/plain", shards("one.jsonl", "two.jsonl", "README.md"))
    answers = hub.names(
        *("hf://t0/pushed", "hf://t0/pushed/train", "hf://t0/pushed/test"),
        *("hf://t0/named/train", "hf://t0/named/validation", "hf://t0/named/test"),
        *("hf://t0/folders/train", "hf://t0/folders/validation", "hf://t0/plain", "hf://t0/plain@main"),
        *("hf://t0/pushed/default/test", "hf://t0/named/default/test", "hf://t0/plain/default/train"),
    )
    pushed = ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"]
    assert answers == [
        *(pushed, pushed, ["data/test-00000-of-00001.parquet"]),
        *(["train.csv"], ["validation_1.csv"], ["my-test.csv"]),
        *(["train/a.jsonl", "train/b.jsonl"], ["dev/c.jsonl"], ["one.jsonl", "two.jsonl"], ["one.jsonl", "two.jsonl"]),
        *(["data/test-00000-of-00001.parquet"], ["my-test.csv"], ["one.jsonl", "two.jsonl"]),
    ]


def test_the_card_s_configs_win(hub: Hub) -> None:
    put(
        hub.folder, "t1/d", shards("en/train-0.parquet", "en/test-0.parquet", "de/a.parquet", "de/b.parquet", "train/x.parquet")
    )
    hub.handler.cards["t1/d"] = {
        "configs": [
            {
                "config_name": "default",
                "data_files": [{"split": "train", "path": "en/train-*"}, {"split": "test", "path": ["en/test-*"]}],
            },
            {"config_name": "de", "data_dir": "de", "data_files": "*.parquet"},
        ]
    }
    assert hub.names(
        "hf://t1/d", "hf://t1/d/train", "hf://t1/d/test", "hf://t1/d/default/test", "hf://t1/d/de", "hf://t1/d/de/train"
    ) == [
        *([["en/train-0.parquet"]] * 2),
        *([["en/test-0.parquet"]] * 2),
        *([["de/a.parquet", "de/b.parquet"]] * 2),
    ]


def test_without_data_files_the_parquet_export_is_read(hub: Hub) -> None:
    put(hub.folder, "t2/script", shards("script.py", "README.md"))
    export = shards("en/train/0000.parquet", "en/train/0001.parquet", "en/test/0000.parquet", "de/partial-train/0000.parquet")
    put(hub.folder, "t2/script", export, "refs/convert/parquet")
    answers = hub.names(
        "hf://t2/script/en/train", "hf://t2/script/de", "hf://t2/script/fr/train", "hf://t2/script@refs/convert/parquet/en/test"
    )
    assert answers[:2] == [["en/train/0000.parquet", "en/train/0001.parquet"], ["de/partial-train/0000.parquet"]]
    assert "no path, split or config/split 'fr/train'" in answers[2]
    assert "it has de/train, en/test, en/train" in answers[2]
    assert answers[3] == ["en/test/0000.parquet"]


def test_paths_patterns_and_revisions_mean_themselves_and_commits_are_pinned(hub: Hub) -> None:
    put(hub.folder, "t3/d", shards("data/a b.jsonl", "data/ü#1.jsonl", "data/deep/c.jsonl"))
    put(hub.folder, "t3/d", shards("data/old.jsonl"), "v1.0")
    answers = hub.ask(
        *("hf://datasets/t3/d/data/a b.jsonl", "hf://t3/d/data", "hf://t3/d/data/*.jsonl", "hf://t3/d/data/{a b,ü#1}.jsonl"),
        *("hf://t3/d@v1.0/data", f"hf://t3/d@{commit_of('t3/d', 'v1.0')}/data/old.jsonl"),
    )
    root = f"hf://datasets/t3/d@{commit_of('t3/d', 'main')}/data/"
    old = f"hf://datasets/t3/d@{commit_of('t3/d', 'v1.0')}/data/old.jsonl"
    assert [sorted(answer) for answer in answers] == [
        [root + "a b.jsonl"],
        [root + "a b.jsonl", root + "deep/c.jsonl", root + "ü#1.jsonl"],
        [root + "a b.jsonl", root + "ü#1.jsonl"],
        [root + "a b.jsonl", root + "ü#1.jsonl"],
        [old],
        [old],
    ]
    size, etag, first, rest = answers[0][root + "a b.jsonl"]
    assert (size, first, rest) == (1600, "<data"[:5], "ta/a b.js")
    assert len(etag) == 40


def test_what_is_not_there_is_said_in_words(hub: Hub) -> None:
    put(hub.folder, "t4/d", shards("train.csv"))
    answers = hub.ask("hf://t4/none", "hf://t4/d@none", "hf://t4/d/test", "hf://o", "hf://t4/d/x/y/z.csv", "hf://t4/d/*.none")
    for answer, says in zip(
        answers, ["does not exist on the hub", "does not exist on the hub", "split or config/split 'test'", "names no data set",
                  "does not exist", "no file matches"], strict=True,
    ):  # fmt: skip
        assert answer.startswith("RecipeError: ")
        assert says in answer


def test_private_data_sets_are_read_with_the_user_s_token(hub: Hub) -> None:
    put(hub.folder, "t5/d", shards("train.csv"))
    hub.handler.token = "secret"
    assert hub.names("hf://t5/d/train", token="secret") == [["train.csv"]]
    (answer,) = hub.ask("hf://t5/d/train")
    hub.handler.token = ""
    assert "may not be seen" in answer


def test_the_cache_keeps_files_by_commit_and_checks_them_against_the_hub_s_hash(hub: Hub, tmp_path: Path) -> None:
    put(hub.folder, "t6/d", shards("train.csv"))
    cache = {"root": str(tmp_path / "c")}
    first = hub.ask("hf://t6/d/train", cache=cache)
    hub.handler.log.clear()
    assert hub.ask("hf://t6/d/train", cache=cache) == first
    assert [line for line in hub.handler.log if "/resolve/" in line] == []
    assert len(list((tmp_path / "c").glob("*/??/*-train.csv"))) == 1


NAMES = [
    *("train.csv", "test.csv", "data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet", "data/train.csv"),
    *(
        "data/test-00000-of-00001.parquet",
        "train/a.csv",
        "test/b.csv",
        "dev/c.csv",
        "my-train_2.csv",
        "trainer.csv",
        "valid.csv",
    ),
    *("sub/train/x.csv", "sub/eval-1.csv", "a.csv", "b.csv", "data/a.csv", "data/custom-00000-of-00001.parquet", "Train.csv"),
    *("testing/x/y.csv", "val/train.csv"),
]


@given(st.sets(st.sampled_from(NAMES), min_size=1, max_size=5))
@settings(max_examples=examples(40))
def test_any_layout_is_divided_into_splits_as_by_datasets_itself(names: set[str]) -> None:
    from datasets.data_files import get_data_patterns, resolve_pattern

    from zephon.storage.huggingface import _of_split

    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            Path(folder, name).parent.mkdir(parents=True, exist_ok=True)
            Path(folder, name).touch()
        expected: dict[str, set[str]] = {}
        for split, patterns in get_data_patterns(folder).items():
            for pattern in patterns:
                with contextlib.suppress(FileNotFoundError):
                    found = {os.path.relpath(path, folder) for path in resolve_pattern(pattern, folder)}
                    expected.setdefault(str(split), set()).update(found)
    splits = {*expected, "train", "validation", "test"}
    ours = {split: set(_of_split(names, split, alone=split == "train")) for split in splits}
    assert {split: found for split, found in ours.items() if found} == expected
