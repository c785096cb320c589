"""What the tests of image files share."""

from __future__ import annotations

import pytest
from vision.pictures import Picture, tricky

_TRICKY = tricky()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with a parameter `picture` gets every tricky picture; `good`, `bad`: those that can and can't be shown."""
    for name, wanted in {
        "picture": _TRICKY,
        "good": [p for p in _TRICKY if p.rgb is not None],
        "bad": [p for p in _TRICKY if p.rgb is None],
    }.items():
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, wanted, ids=lambda p: p.name)


@pytest.fixture(scope="session")
def tricky_pictures() -> list[Picture]:
    """All of them at once."""
    return list(_TRICKY)
