"""What tests of `tokenize_interleaved` share: a small policy, a checked call, and rows in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from tokenizers import Tokenizer
from vision.interleave import chat_tokenizers as kinds
from vision.interleave.samples import canonical

from zephon.errors import DataError
from zephon.plugin import Outcome
from zephon.testing import check_operator
from zephon_vision.policies.base import Plan, Policy, Resize, SpecialIds
from zephon_vision.tokenize_interleaved import TokenizeInterleaved

START, END = "<|im_start|>", "<|im_end|>"
QWEN = kinds.fast(kinds.QWEN)
PAD = QWEN.token_to_id("<|image_pad|>")


@dataclass(frozen=True, kw_only=True)
class Strips(Policy):
    """A policy of a user's own: a token per 28 pixels of width between wrappers, at most `max_tiles`; nothing wider than ten times."""

    name = "strips"
    special_tokens = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
    max_tiles: int = 9

    def plan(self, height: int, width: int, *, images: int = 1) -> Plan:
        if width > 10 * height:
            raise DataError("it is too wide")
        tiles = min(max(1, width // 28), self.max_tiles)
        return Plan(height, width, (), (1, tiles), tiles, tiles + 2)

    def render(self, rgb: npt.NDArray[np.uint8], plan: Plan, resize: Resize) -> npt.NDArray[np.uint8]:
        raise NotImplementedError

    def block_shape(self, plan: Plan) -> tuple[int, ...]:
        return (plan.blocks, 3)

    def token_run(self, plan: Plan, ids: SpecialIds) -> list[int]:
        return [ids["<|vision_start|>"], *[ids["<|image_pad|>"]] * plan.blocks, ids["<|vision_end|>"]]

    def fields(self, plans: Sequence[Plan]) -> dict[str, npt.NDArray[np.int64]]:
        return {}


def operator(**given: Any) -> TokenizeInterleaved:
    given.setdefault("images", Strips())
    if "tokenizer_id" not in given:
        given.setdefault("tokenizer", QWEN)
    return TokenizeInterleaved(**given)


def outcome(rows: Any, **given: Any) -> Outcome:
    """What becomes of short rows; the operator is checked on the way."""
    made = operator(**given)
    source = rows if isinstance(rows, pa.RecordBatch) else canonical(rows)
    check_operator(made, [source])
    result = made.bind()(source)
    result.group.validate(full=True)
    for row in result.group.to_pylist():
        check_row(row)
    return result


def check_row(row: dict[str, Any]) -> None:
    """What always holds."""
    ids = row["input_ids"]
    assert len(ids) == len(row["loss_mask"]) == len(row["mm_token_type_ids"])
    assert [s["image"] for s in row["image_spans"]] == list(range(len(row["images"])))
    assert len(row["image_plans"]) == len(row["images"])
    tokens = blocks = 0
    inside = np.zeros(len(ids), bool)
    for span, plan in zip(row["image_spans"], row["image_plans"], strict=True):
        made = Plan.unpack(plan["numbers"])
        assert span["stop"] - span["start"] == made.tokens
        assert not inside[span["start"] : span["stop"]].any()
        inside[span["start"] : span["stop"]] = True
        tokens, blocks = tokens + made.tokens, blocks + made.blocks
    assert (row["image_tokens"], row["image_blocks"]) == (tokens, blocks)
    assert not np.array(row["loss_mask"], bool)[inside].any()
    assert not np.array(row["mm_token_type_ids"], bool)[~inside].any()


def shown(row: dict[str, Any], tokenizer: Tokenizer = QWEN) -> list[str]:
    """The row in words: stretches of text, special tokens; trained ones in brackets; images as their length."""
    out: list[str] = []
    special = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    spans = {s["start"]: s["stop"] for s in row["image_spans"]}
    at, run, kind = 0, [], None

    def close() -> None:
        if run:
            text = tokenizer.decode(run)
            out.append(f"[{text}]" if kind else text)
            run.clear()

    while at < len(row["input_ids"]):
        if at in spans:
            close()
            out.append(f"({spans[at] - at})")
            at = spans[at]
            continue
        number, trained = row["input_ids"][at], bool(row["loss_mask"][at])
        if number in special:
            close()
            token = tokenizer.id_to_token(number)
            out.append(f"[{token}]" if trained else token)
        else:
            if trained != kind:
                close()
            kind = trained
            run.append(number)
        at += 1
    close()
    return out


def only(rows: Any, **given: Any) -> dict[str, Any]:
    made = outcome(rows, **given).group.to_pylist()
    assert len(made) == 1
    return made[0]
