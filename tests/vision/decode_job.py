"""Decodes files with little memory: `python decode_job.py FILE GOOD_FILE DECODER MEGABYTES`; the good file is decoded first, without
a limit. Prints what came of it, and what it cost. FILE may be a folder: a line for each of its files, in order."""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path

from zephon.errors import DataError
from zephon_vision.decoders import decode


def verdict(path: Path, decoder: str) -> str:
    try:
        return f"shape {decode(path.read_bytes(), decoder=decoder).shape}"  # type: ignore[arg-type]
    except DataError as error:
        return f"refused {error.message}"


if __name__ == "__main__":
    given = Path(sys.argv[1])
    files = sorted(given.iterdir()) if given.is_dir() else [given]
    decode(Path(sys.argv[2]).read_bytes(), decoder=sys.argv[3])  # type: ignore[arg-type]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pages = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = pages + int(sys.argv[4]) * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    begun = time.process_time()
    for file in files:
        print(verdict(file, sys.argv[3]))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak
    print(f"{grown // 1024} MB {time.process_time() - begun:.3f} s")
