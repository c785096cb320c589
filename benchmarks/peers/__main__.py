"""`python -m benchmarks.peers`: makes data and environments, runs the cases interleaved, and writes JSON, a table and charts."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import CORES, settle
from benchmarks.peers import data, environments, report, results
from benchmarks.peers.cases import CASES, PEERS, Case
from benchmarks.peers.runs import run

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
QUICK = data.Sizes(images=64, megabytes=2, documents=4_000)


def main() -> int:
    """Run what is asked for; a peer that can't be installed or fails is a line in the table."""
    given = _arguments()
    settle()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no run outlives this one
    given.until = time.monotonic() + given.budget if given.budget else None
    wanted = {name: CASES[name] for name in given.only or CASES}
    if given.merge:
        results.save(given.json, results.merge(map(results.load, [given.json, *given.merge])))
    if given.report:
        return _report(given, wanted)
    given.tree = results.tree(ROOT)
    groups = sorted({e.group for case in wanted.values() for e in case.entries if _asked(e.peer, given)})
    places = environments.build(given.venvs, groups)
    formats: dict[str, set[str]] = {}
    for case in wanted.values():
        for kind, names in case.data.items():
            formats.setdefault(kind, set()).update(names)
    sizes = QUICK if given.quick else data.Sizes(given.images, given.megabytes, given.documents)
    made, failed = data.make(given.folder, sizes, formats, places)
    for what, reason in (places.reasons | failed).items():
        print(f"{what}: {reason}", file=sys.stderr)
    for case in wanted.values() if not given.prepare else ():
        _measure(case, given, made, failed, places)
    return _report(given, wanted)


def _measure(
    case: Case, given: argparse.Namespace, made: data.Made, failed: dict[str, str], places: environments.Environments
) -> None:
    """All entries in turns, again and again; each run is added to the JSON at once, so that a stop loses nothing."""
    longest = 0.5 if given.quick else case.seconds if given.seconds is None else given.seconds
    longest = min(longest, case.seconds)
    asked = {
        "data": str(made.folder),
        "tokenizer": str(made.tokenizer),
        "more": case.more,
    }
    had = results.load(given.json).get(case.name, {})
    entries = [e for e in case.entries if _asked(e.peer, given) and given.variant in (None, e.variant)]
    if given.best:
        compared = report.contenders(case, had)
        entries = [e for e in entries if e.key in compared]
    for turn in range(given.repeats):
        began = time.monotonic()
        for entry in entries:
            if given.until is not None and time.monotonic() > given.until:
                print(f"{case.name}: the budget of {given.budget:g} s is spent in turn {turn + 1}", file=sys.stderr)
                return
            if given.resume and len(had.get(entry.key, ())) > turn:
                continue
            started = time.time()
            reason = data.missing(case, entry.variant, failed)
            if reason is not None:
                got: dict[str, Any] = {"failed": reason}
            else:
                workers = int(entry.variant.rpartition(" w")[2]) if case.workers else CORES
                told = asked | {"workers": workers, "seconds": longest * entry.longer}
                got = run(entry, case.name, places, told, limit_s=given.limit)
            if "ids" in got:
                got |= report.check(got.pop("ids"), made.folder / "documents.npy", made.tokenizer)
            got |= {"at": time.time(), "took_s": time.time() - started, "tree": given.tree, "vocabulary": made.vocabulary}
            print(f"{case.name} {entry.peer} ({entry.variant}): {report.short(got, case)}", file=sys.stderr, flush=True)
            results.add(given.json, case.name, entry.key, got, anew=turn == 0 and not given.resume)
        print(f"{case.name}: turn {turn + 1} took {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def _report(given: argparse.Namespace, wanted: dict[str, Case]) -> int:
    runs = results.load(given.json)
    text = report.markdown({name: case for name, case in wanted.items() if name in runs}, runs)
    given.json.with_suffix(".md").write_text(text + "\n")
    if given.readme:
        _update_readme(text)
    print(text)
    if given.charts:
        from benchmarks.peers import charts

        charts.draw(given.json.parent, {n: c for n, c in wanted.items() if n in runs}, runs)
    return 0


def _update_readme(text: str) -> None:
    path, begin, end = HERE.parent / "README.md", "<!-- peers: begin -->", "<!-- peers: end -->"
    before, _, rest = path.read_text().partition(begin)
    _, _, after = rest.partition(end)
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def _asked(peer: str, given: argparse.Namespace) -> bool:
    return given.peer is None or peer in given.peer or peer == "bare"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--only", action="append", choices=list(CASES), help="this case (may be given several times)")
    parser.add_argument("--peer", action="append", choices=list(PEERS), help="this peer beside the limits (several times)")
    parser.add_argument("--variant", help="only the entries with this variant")
    parser.add_argument(
        "--repeats", type=int, help="turns (default: 3; with --quick 1); with --resume: until each entry has so many runs"
    )
    parser.add_argument("--resume", action="store_true", help="keep the runs that the JSON has, and go on")
    parser.add_argument(
        "--best", action="store_true", help="of each peer only the ways that goals compare: by the JSON, those that do best"
    )
    parser.add_argument("--quick", action="store_true", help="little data and time: to see that everything works")
    parser.add_argument("--images", type=int, default=data.Sizes.images, help="photographs, about 100 KB each")
    parser.add_argument("--megabytes", type=int, default=data.Sizes.megabytes, help="of text")
    parser.add_argument("--documents", type=int, default=data.Sizes.documents, help="lists of about 550 tokens")
    parser.add_argument("--seconds", type=float, help="the longest window of a run")
    parser.add_argument("--budget", type=float, help="begin no run after so many seconds; --resume goes on")
    parser.add_argument("--limit", type=float, default=120, help="a run that takes longer has failed")
    parser.add_argument("--folder", type=Path, default=ROOT / ".bench-peers", help="made data, kept for the next time")
    parser.add_argument("--venvs", type=Path, default=ROOT / ".venv-peers", help="the peers' environments")
    parser.add_argument(
        "--json", type=Path, default=HERE.parent / "results" / "peers.json", help="raw runs; each is added at once"
    )
    parser.add_argument("--prepare", action="store_true", help="make environments and data, measure nothing")
    parser.add_argument("--report", action="store_true", help="table and charts of the JSON, measure nothing")
    parser.add_argument(
        "--merge", type=Path, action="append", help="take what is newer in this JSON into that of --json (several times)"
    )
    parser.add_argument("--readme", action="store_true", help="put the table into benchmarks/README.md")
    parser.add_argument("--charts", action="store_true", help="PNG charts beside the JSON")
    given = parser.parse_args()
    given.repeats = given.repeats or (1 if given.quick else 3)
    return given


if __name__ == "__main__":
    sys.exit(main())
