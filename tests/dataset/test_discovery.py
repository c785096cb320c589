"""One rule finds a data set's format; what is no data is left aside, and a mixture is refused with a list."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from zephon import Dataset
from zephon.discovery import is_note
from zephon.errors import PluginError, RecipeError

PLUGINS = '''
import json
from dataclasses import dataclass
from typing import ClassVar
from zephon.plugin import Reader

@dataclass(frozen=True, kw_only=True)
class Words(Reader):
    """Like our text reader: one row a line."""
    name: ClassVar[str] = "words"
    suffixes: ClassVar[tuple[str, ...]] = (".wtxt", ".rst", ".json")
    def open(self, store, shard):
        raise NotImplementedError

class Indexed(Words):
    """Two formats whose directories have an index file of one name."""
    suffixes: ClassVar[tuple[str, ...]] = ()
    index_files: ClassVar[tuple[str, ...]] = ("index.json",)
    @classmethod
    def claims(cls, store, files):
        found = [json.loads(store.read(f.path)) for f in files if f.path.endswith("/index.json")]
        return any(f.get("kind") == cls.name for f in found)

class Red(Indexed):
    name: ClassVar[str] = "red"
    suffixes: ClassVar[tuple[str, ...]] = (".blob",)

class Blue(Indexed):
    name: ClassVar[str] = "blue"

class Packed(Words):
    name: ClassVar[str] = "packed"
    suffixes: ClassVar[tuple[str, ...]] = (".special.jsonl",)

class Careless(Words):
    """It can't say what is its own."""
    name: ClassVar[str] = "careless"
    suffixes: ClassVar[tuple[str, ...]] = (".jsonl", ".mine")
    @classmethod
    def claims(cls, store, files):
        return {}["kind"]

class Lines(Words):
    """Its suffix is our text reader's, too."""
    name: ClassVar[str] = "lines"
    suffixes: ClassVar[tuple[str, ...]] = (".text",)
'''


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Formats of another package."""
    folder = tmp_path / "site"
    info = folder / "acme-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    names = ["words:Words", "red:Red", "blue:Blue", "packed:Packed", "lines:Lines", "careless:Careless"]
    points = "\n".join(f"{n.split(':')[0]} = acme_formats:{n.split(':')[1]}" for n in names)
    (info / "entry_points.txt").write_text(f"[zephon.formats]\n{points}\nlost = no_such_module:Lost\n")
    (folder / "acme_formats.py").write_text(PLUGINS)
    monkeypatch.syspath_prepend(folder)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    made.mkdir()
    return made


def write(folder: Path, *names: str, content: str = "x") -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".parquet"):
            pq.write_table(pa.table({"n": [1, 2]}), path)
        else:
            path.write_text(json.dumps({"n": 1}) + "\n" if name.endswith(".jsonl") else content)


def found(folder: Any, **options: Any) -> tuple[str, list[str]]:
    dataset = Dataset.from_path("d", folder, **options)
    recipe = dataset._shards.recipe()
    return recipe["format"], [shard.path.rsplit("/", 1)[-1] for shard in dataset.shards]


def test_a_hub_repository_is_its_data_files(data: Path) -> None:
    write(data, "README.rst", "LICENSE", ".gitattributes", "dataset_infos.json", "data/train-0.parquet", "data/train-1.parquet")
    write(
        data,
        "CITATION.cff",
        "_SUCCESS",
        "data/_metadata",
        "images/logo.png",
        "LICENSE-CC-BY.txt",
        "SHA256SUMS",
        "dataset_info.json",
    )
    assert found(data) == ("parquet", ["train-0.parquet", "train-1.parquet"])


def test_directories_globs_braces_and_several_paths_name_the_same_files(data: Path) -> None:
    write(data, "a/0.jsonl", "a/1.jsonl", "b/2.jsonl", ".hidden/3.jsonl", "b/_4.jsonl")
    want = ("jsonl", ["0.jsonl", "1.jsonl", "2.jsonl"])
    assert found(data) == found(f"{data}/*/*.jsonl") == found(f"{data}/**/[0-9].jsonl") == want
    assert found([data / "a", data / "b"]) == found([f"{data}/a/{{0..1}}.jsonl", data / "b"]) == want
    assert found([data / "b", data / "a", data / "a" / "0.jsonl"])[1] == ["2.jsonl", "0.jsonl", "1.jsonl"]


@pytest.mark.parametrize("extra", ["labels.jsonl", "more/0.jsonl.gz"])
def test_a_mixture_is_refused_with_what_was_found(data: Path, extra: str) -> None:
    write(data, "0.parquet", "1.parquet", extra, "picture.jpg", "picture2.jpg", "README.rst")
    with pytest.raises(RecipeError, match="mixes formats") as caught:
        found(data)
    message = str(caught.value)
    assert "2 parquet" in message
    assert "1 jsonl" in message
    assert extra in message
    assert "2 × .jpg" in message
    assert "format=" in message
    assert found(data, format="parquet")[1] == ["0.parquet", "1.parquet"]


def test_unknown_files_alone_are_refused_with_what_was_found(data: Path, plugins: None) -> None:
    write(data, "a.xyz", "b.xyz", "c")
    with pytest.raises(RecipeError, match="no reader knows the 3 files") as caught:
        found(data)
    assert "2 × .xyz" in str(caught.value)
    assert "1 × no suffix" in str(caught.value)
    assert "no_such_module" in str(caught.value)  # a format that is installed, but broken, may be the one that is missing
    assert "parquet" in str(caught.value)


def test_notes_count_when_they_are_all_there_is_or_are_named(data: Path, plugins: None) -> None:
    write(data, "README.rst")
    assert found(data) == ("words", ["README.rst"])
    write(data, "a.wtxt")
    assert found(data) == ("words", ["a.wtxt"])
    assert found([data / "a.wtxt", data / "README.rst"])[1] == ["a.wtxt", "README.rst"]
    assert found(data, format="words")[1] == ["a.wtxt"]


def test_markdown_beside_other_data_is_no_mixture_but_a_text_data_set_may_hold_it(data: Path, plugins: None) -> None:
    write(data, "guide.rst", "more.rst")
    assert found(data) == ("words", ["guide.rst", "more.rst"])
    write(data, "0.parquet")
    assert found(data) == ("parquet", ["0.parquet"])


def test_metadata_is_never_taken_for_data(data: Path, plugins: None) -> None:
    write(data, "state.json", "dataset_info.json", "0.parquet")
    assert found(data)[0] == "parquet"
    (data / "0.parquet").unlink()
    write(data, "rows.json")
    assert found(data) == ("words", ["rows.json"])


def test_readers_that_share_an_index_file_are_asked(data: Path, plugins: None) -> None:
    for kind in ("red", "blue"):
        write(data / kind, "index.json", content=json.dumps({"kind": kind}))
        write(data / kind, "0.blob", "labels.jsonl", "more/1.parquet")
        assert found(data / kind)[0] == kind
    with pytest.raises(RecipeError, match="mixes formats: 4 blue .*4 red"):
        found(data)


def test_a_reader_that_fails_to_say_what_is_its_own_breaks_no_other(
    data: Path, plugins: None, caplog: pytest.LogCaptureFixture
) -> None:
    write(data, "0.jsonl")
    assert found(data)[0] == "jsonl"
    assert "acme_formats:Careless of acme fails to say whether it knows files: KeyError: 'kind'" in caplog.text
    write(data / "other", "0.mine")
    with pytest.raises(RecipeError, match="no reader knows the 1 files(.|\n)*acme_formats:Careless of acme fails to say"):
        found(data / "other")


def test_an_index_file_that_nobody_claims_changes_nothing(data: Path, plugins: None) -> None:
    write(data, "index.json", content=json.dumps({"kind": "green"}))
    write(data, "0.parquet")
    assert found(data) == ("parquet", ["0.parquet"])


def test_data_outside_of_an_indexed_directory_are_not_silently_left_out(data: Path, plugins: None) -> None:
    write(data / "train", "index.json", content=json.dumps({"kind": "red"}))
    write(data / "train", "0.blob")
    write(data, "extra.parquet")
    with pytest.raises(RecipeError, match="mixes formats: 1 parquet .* 2 red"):
        found(data)


def test_the_longest_suffix_decides(data: Path, plugins: None) -> None:
    write(data, "0.special.jsonl")
    assert found(data)[0] == "packed"
    write(data, "1.jsonl")
    with pytest.raises(RecipeError, match="1 jsonl .* 1 packed"):
        found(data)


def test_a_suffix_of_two_formats_is_no_mixture_and_asks_which_is_meant(data: Path, plugins: None) -> None:
    write(data, "0.text", "1.text")
    with pytest.raises(
        RecipeError, match=r"(?s)^lines and text both read files such as '.*0\.text'.*format='lines' or format='text'"
    ):
        found(data)
    assert found(data, format="text")[0] == "text"


@pytest.mark.parametrize("name", ["0.parquet", "a b%20#c?.parquet", "ünï→日本.parquet", "x[1]{a,b}*.parquet"])
def test_any_name_that_a_file_may_have_is_found(data: Path, name: str) -> None:
    write(data, f"dir {name}/{name}")
    assert found(data)[1] == [name]
    assert found(data / f"dir {name}" / name)[1] == [name]


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("README.rst", True), ("readme", True), ("README_zh-CN.md", True), ("LICENSE", True), ("LICENSE-2.0.txt", True),
        ("licence.txt", True), ("CHANGELOG.rst", True), ("sha256sum.txt", True), ("checksums", True), ("CITATION.cff", True),
        ("requirements.txt", True), ("dataset_card.yaml", True),
        ("readme.parquet", False), ("license.jsonl", False), ("readmes-2020.jsonl", False), ("notices.txt", False),
        ("authors.csv", False), ("contributing.jsonl.gz", False), ("history.txt", False), ("train.txt", False),
    ],
)  # fmt: skip
def test_which_names_are_notes(name: str, note: bool) -> None:
    assert is_note(f"/data/{name}") is note


def test_paths_that_name_nothing_are_refused(data: Path) -> None:
    with pytest.raises(RecipeError, match="does not exist"):
        found(data / "nowhere")
    with pytest.raises(RecipeError, match="no data file"):
        found(data)
    with pytest.raises(RecipeError, match="no path"):
        found([])
    with pytest.raises(RecipeError, match="different stores"):
        write(data, "0.parquet")
        found([data, "memory://x/y"])


def test_unknown_formats_and_options_name_the_nearest(data: Path) -> None:
    write(data, "0.jsonl")
    with pytest.raises(PluginError, match="did you mean 'parquet'"):
        Dataset.from_path("d", data, format="parket")
    with pytest.raises(RecipeError, match="did you mean 'sample_bytes'"):
        Dataset.from_path("d", data, format="jsonl", sample_byte=3)
    with pytest.raises(RecipeError, match="did you mean 'fraction'"):
        found(data, fractions=3)
    with pytest.raises(RecipeError, match="one setting"):
        Dataset.from_path("d", data, "jsonl", format="parquet")


# -------------------------------------------------------------------------------------------------------------- splits


def write_parquet(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"name": [name]}), folder / name)
    return folder


@pytest.mark.parametrize(
    "names",
    [
        ["data/train-00000-of-00001.parquet", "data/test-00000-of-00001.parquet"],
        ["train.parquet", "validation.parquet"],
        ["train/0.parquet", "val/0.parquet"],
        ["en/Train/0.parquet", "en/dev/0.parquet"],
        ["train_sft-00000-of-00001.parquet", "test_sft-00000-of-00001.parquet"],
    ],
)
def test_a_path_that_holds_several_splits_is_refused_with_their_names(names: list[str], tmp_path: Path) -> None:
    write_parquet(tmp_path / "d", *names)
    for path in (tmp_path / "d", f"{tmp_path}/d/**/*.parquet"):
        with pytest.raises(RecipeError, match=r"(?s)several splits: .*train \(1 shards, such as '.*list of paths"):
            Dataset.from_path("d", path).units  # noqa: B018
    both = Dataset.from_path("d", [tmp_path / "d" / name for name in names])
    assert len(both) == 2, "who names them all means them all"
    assert len(Dataset.from_path("d", tmp_path / "d" / names[0])) == 1


@pytest.mark.parametrize(
    "names",
    [
        ["trainer.parquet", "testament.parquet"],
        ["train-0.parquet", "train-1.parquet"],
        ["train/test-0.parquet", "train/test-1.parquet"],
    ],
)
def test_names_that_only_look_like_splits_and_one_split_alone_are_data(names: list[str], tmp_path: Path) -> None:
    assert len(Dataset.from_path("d", write_parquet(tmp_path / "train" / "test", *names))) == 2


def test_splits_beside_other_shards_are_read_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert len(Dataset.from_path("d", write_parquet(tmp_path, "train.parquet", "test.parquet", "more.parquet"))) == 3
    assert "seems to hold several splits" in caplog.text


@pytest.mark.parametrize("path", [5, None, b"x", {"a": 1}, [5], ["a", None], []])
def test_what_is_no_path_is_refused_by_name(path: Any) -> None:
    with pytest.raises(RecipeError, match="path of data set 'corpus' is|data set 'corpus' has no path"):
        Dataset.from_path("corpus", path)


def test_suffixes_count_in_any_case_and_json_is_explained(tmp_path: Path) -> None:
    assert len(Dataset.from_path("d", write_parquet(tmp_path / "a", "X.PARQUET", "y.parquet"))) == 2
    (tmp_path / "a.JSONL").write_text('{"a": 1}\n')
    assert len(Dataset.from_path("d", tmp_path / "a.JSONL")) == 1
    (tmp_path / "a.json").write_text('{"a": 1}\n')
    with pytest.raises(RecipeError, match="format='jsonl' if each line"):
        Dataset.from_path("d", tmp_path / "a.json").units  # noqa: B018
    assert len(Dataset.from_path("d", tmp_path / "a.json", "jsonl")) == 1


FORMAT_OF_A_LINE = """
import sys
from zephon import Dataset
Dataset.from_path("d", sys.argv[1]).units
print(*sorted(m for m in sys.modules if m.startswith("zephon_formats.") and "._" not in m))
"""


def test_only_the_reader_whose_files_are_there_is_imported(data: Path) -> None:
    """From the second process on: the first one notes what the readers' files are called."""
    write(data, "0.parquet")
    for expected in (None, "zephon_formats.parquet"):
        ran = subprocess.run(
            [sys.executable, "-c", FORMAT_OF_A_LINE, str(data)], capture_output=True, text=True, check=True, timeout=60
        )
        assert expected in (None, ran.stdout.strip())


@pytest.mark.usefixtures("plugins")
def test_a_changed_plugin_is_asked_again(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(data, "0.wtxt", "1.other")
    assert found(data) == ("words", ["0.wtxt"])
    module = tmp_path / "site" / "acme_formats.py"
    module.write_text(PLUGINS.replace(".wtxt", ".other"))
    monkeypatch.delitem(sys.modules, "acme_formats")
    importlib.invalidate_caches()
    assert found(data) == ("words", ["1.other"])
