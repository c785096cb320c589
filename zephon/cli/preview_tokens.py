"""Token ids back to text, cut where training begins and ends and at special tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from zephon.plugin import Operator


@dataclass(frozen=True)
class Run:
    """Neighbouring tokens that are of one kind: their text, whether they are trained, whether they are special."""

    text: str
    trained: bool
    special: bool
    tokens: int


class Decoder:
    """The tokenizer of a pipeline, the other way round."""

    def __init__(self, loaded: Any) -> None:
        """`loaded` is a `LoadedTokenizer` of `zephon.operators.tokenizer_files`."""
        self._decode: Callable[[list[int]], str]
        if loaded.fast is not None:
            fast = loaded.fast
            self._decode = lambda ids: str(fast.decode(ids, skip_special_tokens=False))
            self._special = {number for number, token in fast.get_added_tokens_decoder().items() if token.special}
            self._name: Callable[[int], str] = lambda number: fast.id_to_token(number) or f"[{number}]"
        else:
            slow = loaded.slow
            self._decode = lambda ids: str(slow.decode(ids, skip_special_tokens=False))
            self._special = set(slow.all_special_ids)
            self._name = lambda number: str(slow.convert_ids_to_tokens(number))

    @classmethod
    def of(cls, operators: Sequence[Operator]) -> Decoder | None:
        """The decoder of the last operator that holds a tokenizer; None: there is none."""
        holding = [op for op in operators if hasattr(type(op), "loaded")]
        return cls(holding[-1].loaded) if holding else None  # type: ignore[attr-defined]

    def runs(self, tokens: Sequence[int], trained: Sequence[bool]) -> Iterator[Run]:
        """The text of a piece of one document. Special tokens are shown by their names."""
        place = 0
        for special, same in groupby(tokens, key=self._special.__contains__):
            ids = list(same)
            flags = list(trained[place : place + len(ids)])
            place += len(ids)
            if special:
                for number, flag in zip(ids, flags, strict=True):
                    yield Run(self._name(number), flag, True, 1)
            else:
                yield from self._plain(ids, flags)

    def _plain(self, ids: list[int], trained: Sequence[bool]) -> Iterator[Run]:
        # a token may be a part of a character: prefixes are decoded, so that only the whole text has to be right
        done, stop = "", 0
        for flag, same in groupby(trained):
            count = sum(1 for _ in same)
            stop += count
            text = self._decode(ids[:stop])
            whole = text.rstrip("\ufffd") if stop < len(ids) else text
            new = whole[len(done) :] if whole.startswith(done) else self._decode(ids[stop - count : stop])
            done = whole if whole.startswith(done) else text
            yield Run(new, flag, False, count)
