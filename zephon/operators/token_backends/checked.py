"""A faster encoder at work, beside the reference: texts that it isn't sure of, calls that fail, and a check of one text in 16,384."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from zephon import keys
from zephon.errors import PluginError
from zephon.keys import I64
from zephon.operators.token_backends.base import I32, FlatEncoder, flat

ONE_IN = 16_384
"""The reference encodes one text of so many: it is 40 to 150 times slower, so of every 4,096 it would take 4 % of the time."""

UNCHECKED = 1 << 27
"""So many ids come first. To make the reference takes 0.1 to 2 s with the interpreter lock held, so that all threads stand still: beside
these it is some per cent, as the checks are later; in a run that is over in a second it would be a quarter."""

_LOOKED_AT = 16
"""Ids of a text that say whether it is checked: to sum all of them would take 2 % of the time."""
_FACTORS = keys.mix_array(np.arange(_LOOKED_AT, dtype=np.uint64)) | np.uint64(1)

_log = logging.getLogger("zephon.operators.tokenize")


class Checked:
    """Encodes with `fast`, whose ids were proven equal to the reference's.

    A difference that shows up in the run is an error: a silent change of the encoder would change what the run trains on.

    Args:
        name: of the library, with its version.
        unsure: texts with one of these strings are encoded by the reference.
        one_in: the reference checks one text of so many.
    """

    def __init__(
        self,
        name: str,
        fast: FlatEncoder,
        *,
        reference: FlatEncoder,
        reference_name: str,
        unsure: Sequence[str],
        one_in: int = ONE_IN,
    ) -> None:
        self._name = name
        self._fast = fast
        self._reference = reference
        self._reference_name = reference_name
        self.unsure = unsure
        self._one_in = one_in
        self._said = False
        self._seen = 0

    def encode(self, texts: Sequence[str]) -> tuple[I32, I64]:
        """`(ids of all texts in a row, int64[N] how many each text has)`. Raises `PluginError` where the libraries differ."""
        try:
            ids, lengths = self.attempt(texts)
        except BaseException as error:  # a panic of Rust is not an Exception
            if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
                raise
            self._say(error)
            return self._reference.encode(texts)
        self._seen += len(ids)  # two threads may count at once and miss some: it is only about when checks begin
        if self._seen > UNCHECKED:
            self._check(texts, ids, lengths)
        return ids, lengths

    def attempt(self, texts: Sequence[str]) -> tuple[I32, I64]:
        """The same without checks. Raises whatever the library raises."""
        odd = [row for mark in self.unsure for row, text in enumerate(texts) if mark in text]
        if odd:
            return self._around(texts, sorted(set(odd)))
        ids, lengths = self._fast.encode(texts)
        if len(lengths) != len(texts) or int(lengths.sum()) != len(ids):
            raise ValueError(f"{len(lengths)} lengths, {lengths.sum()} in all, for {len(texts)} texts with {len(ids)} ids")
        return ids, lengths

    def _around(self, texts: Sequence[str], odd: Sequence[int]) -> tuple[I32, I64]:
        """The rows `odd` by the reference, the stretches between them by the faster library."""
        taken = set(odd)
        plain = [text for row, text in enumerate(texts) if row not in taken]
        ids, lengths = self.attempt(plain) if plain else flat([])
        others, sizes = self._reference.encode([texts[row] for row in odd])
        ends, their_ends = np.cumsum(lengths), np.cumsum(sizes)
        parts, done = [], 0
        for place, row in enumerate(odd):
            before = row - place  # so many of the plain ones come first
            end = int(ends[before - 1]) if before else 0
            parts += [ids[done:end], others[int(their_ends[place] - sizes[place]) : int(their_ends[place])]]
            done = end
        return np.concatenate([*parts, ids[done:]]), np.insert(lengths, np.array(odd) - np.arange(len(odd)), sizes)

    def _say(self, error: BaseException) -> None:
        if not self._said:
            self._said = True
            _log.info(
                "%s failed, %s takes over where it does: %s: %s", self._name, self._reference_name, type(error).__name__, error
            )

    def _check(self, texts: Sequence[str], ids: I32, lengths: I64) -> None:
        for row in drawn(ids, lengths, self._one_in):
            begin = int(lengths[:row].sum())
            mine = ids[begin : begin + int(lengths[row])]
            theirs, _ = self._reference.encode([texts[row]])
            if not np.array_equal(mine, theirs):
                raise PluginError(
                    f"{self._name} and {self._reference_name} give different ids for the text that begins with {texts[row][:60]!r}",
                    hint="give the operator backend='tokenizers', and doubt what was tokenised with the other; please report the text",
                )


def drawn(ids: I32, lengths: I64, one_in: int) -> list[int]:
    """The rows to check: about one of `one_in`, by a hash of their length and of 16 of their ids, so that every run checks the same texts.

    Where one text is repeated many times, at most eight times as many as that.
    """
    rows = np.flatnonzero(lengths)
    sizes = lengths if len(rows) == len(lengths) else lengths[rows]
    begins = np.cumsum(sizes) - sizes
    few = ids[begins[:, None] + (sizes[:, None] - 1) * np.arange(_LOOKED_AT) // (_LOOKED_AT - 1)].astype(np.uint64)
    values = keys.mix_array((few * _FACTORS).sum(axis=1) + sizes.astype(np.uint64))
    chosen: list[int] = rows[values % np.uint64(one_in) == 0].tolist()
    return chosen[: 1 + 8 * len(lengths) // one_in]
