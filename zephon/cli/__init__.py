"""The command `zephon`: each command's module is imported only when that command runs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import zephon
from zephon.errors import ZephonError


def make_parser() -> argparse.ArgumentParser:
    """The parser; its sub-commands are all there are."""
    parser = argparse.ArgumentParser(
        prog="zephon",
        description="Training data loader: the same global batches on any number of GPUs, before and after any restart.",
    )
    parser.add_argument("--version", action="version", version=f"zephon {zephon.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    commands.add_parser("plugins", help="list the formats and operators that are installed, and which package each comes from")

    demo = commands.add_parser("demo", help="train-ready batches from real text, with the same hashes on 1, 2, 4 and 8 ranks")
    demo.add_argument(
        "--dir", metavar="D", help="keep the data sets and the tokenizer in this folder (default: a temporary one)"
    )
    demo.add_argument("--size", metavar="MB", type=_size, help="text per data set, at most (default: 8; with --quick: 1)")
    demo.add_argument("--quick", action="store_true", help="few steps and little data: a check, not a show")
    return parser


def _size(text: str) -> float:
    size = float(text)
    if not 0.1 <= size <= 10_000:
        raise argparse.ArgumentTypeError(f"{text} MB is out of range; give 0.1 to 10000")
    return size


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its exit status. 0: done; 1: failed, with the reason on stderr; 2: wrong usage; 130: interrupted."""
    given = make_parser().parse_args(arguments)
    try:
        return _run(given)
    except ZephonError as error:
        print(f"zephon: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # the reader, say `head`, has seen enough; keep the interpreter from complaining when it flushes stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(given: argparse.Namespace) -> int:
    if given.command == "plugins":
        from zephon.cli.plugins import show_plugins

        return show_plugins()
    from zephon.cli.demo import run_demo

    return run_demo(folder=given.dir, megabytes=given.size, quick=given.quick)
