"""The house rules that no reviewer should have to watch (STYLE: budgets, doors, names, errors that travel)."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pickle
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

import pytest

import zephon
import zephon_formats
import zephon_vision
from zephon import errors, plugin
from zephon.errors import Where, ZephonError
from zephon.plugin import Operator, Reader

ROOT = Path(zephon.__file__).parents[1]
FOLDERS = ("zephon", "zephon_formats", "zephon_vision", "tests", "examples", "benchmarks")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
PACKAGES = (zephon, zephon_formats, zephon_vision)
HEAVY = ("torch", "pyarrow", "numpy", "fsspec", "PIL", "transformers", "tokenizers")
OURS = [
    p
    for group in ("zephon.formats", "zephon.operators")
    for p in entry_points(group=group)
    if p.dist and p.dist.name == "zephon"
]


def modules() -> Iterator[ModuleType]:
    for package in PACKAGES:
        yield package
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith("__main__"):
                yield importlib.import_module(found.name)


MODULES = {module.__name__: module for module in modules()}


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout


def test_importing_zephon_loads_no_heavy_library() -> None:
    loaded = run_python("import sys, zephon; print(*{name.partition('.')[0] for name in sys.modules})").split()
    assert not set(HEAVY) & set(loaded)


def test_building_a_pipeline_loads_neither_torch_nor_a_tokenizer_library() -> None:
    code = (
        "import sys; from zephon import Dataset, Pipeline\n"
        "Pipeline(Dataset.from_records('x', [{'a': 1}])).shuffle().batch(1).explain()\n"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    assert not {"torch", "transformers", "tokenizers", "PIL"} & set(run_python(code).split())


def test_the_command_line_lists_its_commands_without_a_heavy_library() -> None:
    code = "import sys; from zephon.cli import make_parser; make_parser().format_help(); print(*sys.modules)"
    assert not set(HEAVY) & {name.partition(".")[0] for name in run_python(code).split()}


def test_the_import_contracts_are_kept() -> None:
    command = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    made = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, cwd=ROOT, check=False)
    assert made.returncode == 0, made.stdout


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_is_longer_than_500_lines(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 500


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_function_has_60_lines_besides_its_docstring(path: Path) -> None:
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            told = node.body[0] if ast.get_docstring(node) else None
            lines = (node.end_lineno or 0) - node.lineno + 1 - ((told.end_lineno or 0) - told.lineno + 1 if told else 0)
            found += [f"{node.name}: {lines}"] if lines >= 60 else []
    assert found == []


@pytest.mark.parametrize("name", sorted(name for name, module in MODULES.items() if hasattr(module, "__all__")))
def test_every_name_that_a_module_offers_exists_and_is_named_once(name: str) -> None:
    """That they are sorted, ruff sees (RUF022)."""
    module = MODULES[name]
    assert len(module.__all__) == len(set(module.__all__))
    assert all(hasattr(module, public) for public in module.__all__)


def test_the_front_door_names_are_the_same_for_editors_and_at_run_time() -> None:
    tree = ast.parse((ROOT / "zephon" / "__init__.py").read_text(encoding="utf-8"))
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    for_editors = {alias.asname for node in guarded.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert for_editors | {"__version__"} == set(zephon.__all__)


def test_the_plugin_door_names_all_that_it_defines() -> None:
    defined = {
        name
        for name, value in vars(plugin).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == plugin.__name__
    }
    assert defined - set(plugin.__all__) <= {"CountsTokens"}


@pytest.mark.parametrize("point", OURS, ids=lambda point: f"{point.group}:{point.name}")
def test_every_entry_point_of_ours_is_a_frozen_dataclass_of_that_name(point) -> None:
    made = point.load()
    assert made.name == point.name
    assert dataclasses.is_dataclass(made)
    assert made.__dataclass_params__.frozen
    assert issubclass(made, Reader if point.group == "zephon.formats" else Operator)


def test_every_reader_and_operator_of_ours_has_an_entry_point() -> None:
    known = {point.load() for point in OURS}
    for name, module in MODULES.items():
        for kind in vars(module).values():
            if isinstance(kind, type) and issubclass(kind, Reader | Operator) and kind.__module__ == name:
                assert inspect.isabstract(kind) or kind in known or name.startswith("zephon.testing"), kind


def error_classes(kind: type[ZephonError] = ZephonError) -> list[type[ZephonError]]:
    return [kind, *(found for child in kind.__subclasses__() for found in error_classes(child))]


@pytest.mark.parametrize(
    "kind", [k for k in error_classes() if k.__module__.startswith("zephon")], ids=lambda kind: kind.__name__
)
def test_every_error_survives_pickling_with_its_place(kind: type[ZephonError]) -> None:
    made = kind(
        "it broke", where=Where(dataset="wiki", shard="a.jsonl", row=17, operator="tokenize"), hint="mend it", trace="T"
    )
    back = pickle.loads(pickle.dumps(made))
    assert type(back) is kind
    assert (back.message, back.where, back.hint, back.trace) == (made.message, made.where, made.hint, made.trace)
    assert str(back) == "it broke [dataset 'wiki', shard 'a.jsonl', row 17, operator 'tokenize']\n  → mend it"


def test_every_error_class_lives_in_one_file() -> None:
    assert {kind.__module__ for kind in error_classes() if kind.__module__.startswith("zephon")} == {errors.__name__}


def undocumented(module: ModuleType) -> Iterator[str]:
    """Public classes, functions and methods that this module defines and that say nothing about themselves."""
    if not module.__doc__ and Path(module.__file__ or "").stat().st_size:
        yield module.__name__
    for name, value in vars(module).items():
        if name.startswith("_") or getattr(value, "__module__", None) != module.__name__:
            continue
        if inspect.isfunction(value) and not value.__doc__:
            yield f"{module.__name__}.{name}"
        if inspect.isclass(value):
            if not value.__doc__ or value.__doc__.startswith(f"{name}("):  # what a dataclass makes up is no docstring
                yield f"{module.__name__}.{name}"
            for method, member in vars(value).items():
                if inspect.isfunction(member) and not method.startswith("_") and not inspect.getdoc(getattr(value, method)):
                    yield f"{module.__name__}.{name}.{method}"


PROTOCOLS = [
    kind
    for module in MODULES.values()
    for kind in vars(module).values()
    if isinstance(kind, type) and getattr(kind, "_is_protocol", False) and kind.__module__.startswith("zephon")
]


def documented_elsewhere(name: str) -> bool:
    """A method that a protocol of ours asks for: what it does is said there."""
    return any(hasattr(protocol, name.rsplit(".", 1)[-1]) for protocol in PROTOCOLS)


@pytest.mark.parametrize("name", sorted(name for name in MODULES if "._" not in name))
def test_every_public_thing_has_a_docstring(name: str) -> None:
    assert [found for found in undocumented(MODULES[name]) if not documented_elsewhere(found)] == []


def test_the_stub_for_editors_is_fresh() -> None:
    """`make stub` writes it."""
    from zephon.cli.stub import PATH, make_stub

    assert PATH.read_text(encoding="utf-8") == make_stub()


def test_no_machine_or_registry_is_named_in_the_project() -> None:
    """Neither a path of somebody's machine nor an index of packages belongs into the repository."""
    words = ("/home/", "/Users/", "pypi.org", "index-url", "/work/")
    texts = [
        *FILES,
        ROOT / "Makefile",
        ROOT / "pyproject.toml",
        ROOT / ".ci" / "run",
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
    ]
    mine = Path(__file__).resolve()
    found = [f"{p.name}: {w}" for p in texts if p.resolve() != mine for w in words if w in p.read_text(encoding="utf-8")]
    assert found == []


def test_every_number_of_examples_grows_with_the_profile() -> None:
    plain = [
        f"{path.relative_to(ROOT)}:{word.value.lineno}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for word in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(word, ast.keyword) and word.arg == "max_examples" and isinstance(word.value, ast.Constant)
    ]
    assert not plain, "max_examples=examples(…), from tests/thoroughness.py"
