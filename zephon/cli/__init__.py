"""The command `zephon`: each command's module is imported only when that command runs."""

from __future__ import annotations

import argparse
import errno
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
    demo.add_argument(
        "--size", metavar="MB", type=_size, help="text per data set, at most (default: 8; with --quick: 1); not with --vlm"
    )
    demo.add_argument("--quick", action="store_true", help="few steps and little data: a check, not a show")
    demo.add_argument(
        "--vlm", action="store_true", help="documents with images: packed, decoded, the same pixels on 1, 2 and 4 ranks"
    )
    demo.add_argument(
        "--manuals", metavar="D", help="with --vlm: a folder of illustrated HTML manuals (default: this system's)"
    )

    inspect = commands.add_parser(
        "inspect", help="what a data set is: format, shards, rows, columns, and what training would need"
    )
    inspect.add_argument("uri", metavar="URI", help="a file, a directory, a pattern or a URL")
    inspect.add_argument("--format", metavar="F", help="the reader to use (default: by index file and suffix)")
    inspect.add_argument("--rows", metavar="N", type=int, default=5, help="rows to show (default: 5)")
    _add_convert(commands)
    _add_preview(commands)

    cache = commands.add_parser("cache", help="what the shard cache on this machine holds; with --clear, remove it")
    cache.add_argument("--dir", metavar="D", help="the cache's directory (default: this user's)")
    cache.add_argument("--clear", action="store_true", help="remove what no running job uses")
    return parser


def _add_convert(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    convert = commands.add_parser("convert", help="write a data set in another format; an interrupted run goes on where it was")
    convert.add_argument("source", metavar="SRC", help="a file, a directory, a pattern or a URL")
    convert.add_argument("destination", metavar="DST", help="a new local directory")
    convert.add_argument("--to", metavar="FORMAT", required=True, help="the format to write")
    convert.add_argument("--format", metavar="F", help="the reader of SRC (default: by index file and suffix)")
    convert.add_argument("--columns", metavar="A,B", help="only these columns")
    size = convert.add_mutually_exclusive_group()
    size.add_argument("--rows-per-shard", metavar="N", type=int, help="rows in a shard")
    size.add_argument("--shard-bytes", metavar="S", type=_bytes, help="decoded bytes in a shard, e.g. 64MB (default: 256MB)")


def _add_preview(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    preview = commands.add_parser(
        "preview", help="look at the first batches: documents, trained text, images, what was dropped"
    )
    preview.add_argument("target", metavar="TARGET", help="FILE.py:NAME or MODULE:NAME of a pipeline, or data as for inspect")
    preview.add_argument("--batches", metavar="N", type=_count, default=4, help="how many batches (default: 4)")
    preview.add_argument("--html", metavar="OUT", help="write one HTML page in place of showing it here")
    preview.add_argument("--characters", metavar="N", type=_count, default=600, help="text per document here (default: 600)")
    data = preview.add_argument_group("for data", "what the plain pipeline over it is made with")
    data.add_argument("--tokenizer", metavar="T", help="a tokenizer.json, a folder or a hub id")
    data.add_argument("--images", metavar="POLICY", help="the image policy (default: qwen2_5_vl, if the data has images)")
    data.add_argument("--field", metavar="F", help="the column with the text")
    data.add_argument("--max-length", metavar="N", type=_count, help="tokens in a sequence")
    data.add_argument("--media-root", metavar="D", help="the folder that image paths are under (default: the data's own)")


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return number


def _bytes(text: str) -> int:
    number = text.upper().removesuffix("B")
    scale = {"K": 1e3, "M": 1e6, "G": 1e9}.get(number[-1:], 1)
    try:
        size = int(float(number.rstrip("KMG")) * scale)
    except (ValueError, OverflowError):
        size = 0
    if size < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; give for example 64MB")
    return size


def _size(text: str) -> float:
    size = float(text)
    if not 0.1 <= size <= 10_000:
        raise argparse.ArgumentTypeError(f"{text} MB is out of range; give 0.1 to 10000")
    return size


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its exit status. 0: done; 1: failed, with the reason on stderr; 2: wrong usage; 130: interrupted."""
    parser = make_parser()
    given = parser.parse_args(arguments)
    if given.command == "demo" and not given.vlm and given.manuals is not None:
        parser.error("demo: --manuals is for --vlm")
    if given.command == "demo" and given.vlm and given.size is not None:
        parser.error("demo: --size is for the demo of text, not for --vlm")
    try:
        status = _run(given)
        sys.stdout.flush()  # here, where a disk that is full can still be told
        return status
    except ZephonError as error:
        print(f"zephon: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # the reader, say `head`, has seen enough; keep the interpreter from complaining when it flushes stdout
        _let_go_of_stdout()
        return 0
    except OSError as error:
        if error.filename is not None or error.errno not in _FULL:
            raise
        _let_go_of_stdout()
        print(f"zephon: the output can't be written: {error.strerror}", file=sys.stderr)
        return 1


_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO)
"""What writing to a file that stdout leads to may raise, without a name; where a command writes files, its errors name them."""


def _let_go_of_stdout() -> None:
    """What is still to be written goes nowhere, so that the end of the program doesn't fail by it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(given: argparse.Namespace) -> int:
    if given.command == "plugins":
        from zephon.cli.plugins import show_plugins

        return show_plugins()
    if given.command == "inspect":
        from zephon.cli.inspect import show_dataset

        return show_dataset(given.uri, fmt=given.format, rows=given.rows)
    if given.command == "convert":
        from zephon.cli.convert import convert

        return convert(
            given.source,
            given.destination,
            to=given.to,
            fmt=given.format,
            columns=given.columns.split(",") if given.columns else None,
            rows_per_shard=given.rows_per_shard,
            shard_bytes=given.shard_bytes,
        )
    if given.command == "cache":
        from zephon.cli.cache import show_cache

        return show_cache(given.dir, given.clear)
    if given.command == "preview":
        from zephon.cli.preview import run_preview

        settings = {name: getattr(given, name) for name in ("tokenizer", "images", "field", "max_length", "media_root")}
        return run_preview(given.target, settings, batches=given.batches, characters=given.characters, html=given.html)
    if given.vlm:
        from zephon.cli.demo_vlm import run_demo_vlm

        return run_demo_vlm(folder=given.dir, manuals=given.manuals, quick=given.quick)
    from zephon.cli.demo import run_demo

    return run_demo(folder=given.dir, megabytes=given.size, quick=given.quick)
