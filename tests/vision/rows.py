"""Rows with images, plans and documents for tests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from zephon import groups
from zephon_vision import columns
from zephon_vision.headers import read_header
from zephon_vision.policies.base import load


def policy_spec(folder: Path, kind: str, **settings: Any) -> str:
    """The spec of a policy that is built from a model's `preprocessor_config.json`."""
    path = folder / f"{kind}{len(settings)}"
    path.mkdir(exist_ok=True)
    (path / "preprocessor_config.json").write_text(json.dumps({"image_processor_type": kind, **settings}))
    return f"from:{path}"


def images_array(rows: Sequence[Sequence[bytes | None]]) -> Any:
    """IMAGES of files; None is a missing one."""
    return pa.array([[{"bytes": data, "path": None} for data in row] for row in rows], type=columns.IMAGES_TYPE)


def planned(rows: Sequence[Sequence[bytes | None]], spec: str, *, otherwise: tuple[int, int] = (60, 90)) -> pa.RecordBatch:
    """Rows with images and plans; an image without a header is planned as if it had the size `otherwise`."""
    policy = load(spec)
    plans = []
    for row in rows:
        plans.append([])
        for data in row:
            try:
                head = read_header(data or b"")
                size = (head.height, head.width)
            except Exception:
                size = otherwise
            plans[-1].append({"policy": spec, "numbers": policy.plan(*size, images=len(row)).pack()})
    return pa.RecordBatch.from_arrays(
        [images_array(rows), pa.array(plans, type=columns.IMAGE_PLANS_TYPE)], names=[columns.IMAGES, columns.IMAGE_PLANS]
    )


def with_column(group: pa.RecordBatch, name: str, values: Any, kind: Any) -> pa.RecordBatch:
    """The group with a column more."""
    return groups.set_column(group, name, pa.array(values, type=kind))
