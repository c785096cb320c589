"""Folders that Hugging Face `datasets` wrote are read as its `load_from_disk` reads them, or refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from formats.reading import open_file, read_rows

from zephon.errors import DataError, RecipeError
from zephon.storage import LocalStore, expand
from zephon_formats.arrow import Arrow


def write_stream(path: Path, table: pa.Table) -> None:
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table)


def hf_rows(folder: Path) -> list[dict[str, Any]]:
    store = LocalStore(str(folder.parent / ".cache"))
    rows: list[dict[str, Any]] = []
    for shard in Arrow().shards(store, expand(store, str(folder))):
        rows += read_rows(Arrow().open(store, shard))
    return rows


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Any:
    import datasets

    datasets.disable_progress_bars()
    return datasets


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_saved_data_set_is_read_in_the_order_of_its_state(tmp_path: Path, hub: Any) -> None:
    made = hub.Dataset.from_dict({"id": list(range(2500)), "text": [f"t{i}" for i in range(2500)]}).shuffle(seed=1)
    made.save_to_disk(str(tmp_path / "d"), num_shards=12)
    expected = hub.load_from_disk(str(tmp_path / "d")).to_list()
    assert expected == made.to_list()
    assert hf_rows(tmp_path / "d") == expected
    state = tmp_path / "d" / "state.json"
    content = json.loads(state.read_text())
    content["_data_files"].reverse()
    state.write_text(json.dumps(content))
    assert hf_rows(tmp_path / "d") == hub.load_from_disk(str(tmp_path / "d")).to_list() != expected


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_images_and_arrays_of_a_saved_data_set_stay_usable(tmp_path: Path, hub: Any) -> None:
    features = hub.Features(
        {
            "image": hub.Image(),
            "label": hub.ClassLabel(names=["cat", "dog"]),
            "grid": hub.Array2D((2, 3), "int32"),
            "tokens": hub.List(hub.Value("int32")),
        }
    )
    rows = {
        "image": [{"bytes": b"\x89PNG%d" % i, "path": f"{i}.png"} for i in range(5)],
        "label": [0, 1, 0, 1, 1],
        "grid": [np.arange(6, dtype="int32").reshape(2, 3) + i for i in range(5)],
        "tokens": [[i] * i for i in range(5)],
    }
    hub.Dataset.from_dict(rows, features=features).save_to_disk(str(tmp_path / "d"))
    found = hf_rows(tmp_path / "d")
    assert [r["image"] for r in found] == rows["image"]
    assert [r["label"] for r in found] == rows["label"]
    assert [r["grid"] for r in found] == [g.tolist() for g in rows["grid"]]
    assert [r["tokens"] for r in found] == rows["tokens"]
    opened = open_file(Arrow(), tmp_path / "d" / "data-00000-of-00001.arrow")
    assert opened.schema.field("image").type == pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    assert opened.schema.metadata is None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_several_splits_are_refused_by_name_and_one_is_read(tmp_path: Path, hub: Any) -> None:
    part = hub.Dataset.from_dict({"id": [1, 2, 3]})
    hub.DatasetDict({"train": part, "test": part.select([0])}).save_to_disk(str(tmp_path / "d"))
    with pytest.raises(RecipeError, match=r"splits train, test(.|\n)*d/train"):
        hf_rows(tmp_path / "d")
    assert hf_rows(tmp_path / "d" / "test") == [{"id": 1}]
    hub.DatasetDict({"train": part}).save_to_disk(str(tmp_path / "one"))
    assert len(hf_rows(tmp_path / "one")) == 3


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_saved_data_set_that_is_incomplete_or_mapped_is_refused(tmp_path: Path, hub: Any) -> None:
    folder = tmp_path / "d"
    hub.Dataset.from_dict({"id": list(range(10))}).save_to_disk(str(folder), num_shards=2)
    state = folder / "state.json"
    good = json.loads(state.read_text())
    state.write_text(json.dumps(good | {"_indices_data_files": [{"filename": "indices.arrow"}]}))
    with pytest.raises(DataError, match=r"indices mapping(.|\n)*flatten_indices"):
        hf_rows(folder)
    state.write_text("{")
    with pytest.raises(DataError, match=r"state\.json"):
        hf_rows(folder)
    state.write_text(json.dumps(good))
    (folder / "data-00001-of-00002.arrow").unlink()
    with pytest.raises(DataError, match=r"1 of them are missing, first 'data-00001-of-00002\.arrow'"):
        hf_rows(folder)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_empty_saved_data_set_has_no_rows(tmp_path: Path, hub: Any) -> None:
    hub.Dataset.from_dict({"id": []}).save_to_disk(str(tmp_path / "d"))
    assert hf_rows(tmp_path / "d") == []


def test_the_cache_of_load_dataset_is_read_unless_it_holds_several_data_sets(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    (folder / "dataset_info.json").write_text(json.dumps({"splits": {"train": {}, "test": {}}}))
    for name in ("x-train-00000-of-00002.arrow", "x-train-00001-of-00002.arrow"):
        write_stream(folder / name, pa.table({"name": [name]}))
    assert [r["name"][8:13] for r in hf_rows(folder)] == ["00000", "00001"]
    write_stream(folder / "x-test.arrow", pa.table({"name": ["t"]}))
    with pytest.raises(RecipeError, match=r"splits train, test(.|\n)*\*-train\*\.arrow"):
        hf_rows(folder)
    (folder / "x-test.arrow").unlink()
    write_stream(folder / "cache-0f.arrow", pa.table({"name": ["m"]}))
    with pytest.raises(RecipeError, match="results of map"):
        hf_rows(folder)
