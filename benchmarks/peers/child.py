"""`python child.py JSON`: one run of one peer. Prints one line of JSON, the last that it writes, whatever the libraries print before."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any


def main() -> int:
    """Run what the JSON says; 1 where it failed, with the reason in the line."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    asked = json.loads(sys.argv[1])
    # at the end of the path: our scripts must not hide somebody's package of the same name
    sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != Path(__file__).parent.resolve()]
    sys.path.append(str(Path(__file__).parent.parent))
    made: dict[str, Any]
    try:
        made = _write(asked) if "write" in asked else _run(asked)
    except BaseException as error:  # noqa: BLE001 - whatever it was, the table shall say so
        traceback.print_exc()
        made = {"failed": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
    out.write("\n" + json.dumps(made) + "\n")
    out.flush()
    os._exit(1 if "failed" in made else 0)  # some peers' threads and processes don't end by themselves


_NAMES = {
    "ours": ("zephon", "Pipeline"),
    "public": ("zephon", "Pipeline"),
    "grain": ("grain", "MapDataset"),
    "litdata": ("litdata", "StreamingDataset"),
    "streaming": ("streaming", "StreamingDataset"),
    "datasets": ("datasets", "load_dataset"),
    "webdataset": ("webdataset", "WebDataset"),
    "spdl": ("spdl.pipeline", "PipelineBuilder"),
}
"""The package that a user imports, and the name that it is imported for (ours loads names on first use)."""


def _imports(peer: str) -> dict[str, float]:
    """Before anything else is imported here."""
    module, name = _NAMES[peer]
    began, used = time.perf_counter(), time.process_time()
    package = importlib.import_module(module)
    plain, cpu = time.perf_counter() - began, time.process_time() - used
    getattr(package, name)
    return {"import_s": plain, "import_cpu_s": cpu, "import_name_s": time.perf_counter() - began}


def _run(asked: dict[str, Any]) -> dict[str, Any]:
    imports = _imports(asked["peer"]) if asked["case"] == "B5" else {}
    from peers.measuring import Given, measure  # type: ignore[import-not-found]

    began = asked.pop("began")
    given = Given(**asked)
    cases = importlib.import_module(f"peers.loaders.{given.peer}").CASES
    made = cases["B2" if given.case == "scaling" else given.case]
    if given.case in ("B6", "B7"):  # not a flow of batches
        return dict(made(given))
    return dict(measure(made, given, began)) | imports


def _write(asked: dict[str, Any]) -> dict[str, Any]:
    from peers.writers import WRITERS  # type: ignore[import-not-found]

    WRITERS[asked["write"]](asked["source"], asked["target"])
    return {}


if __name__ == "__main__":
    sys.exit(main())
