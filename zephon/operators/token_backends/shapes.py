"""Which tokenizers the quicker libraries were found to encode alike.

Equal ids on a sample show little for a pre-tokenizer that nobody looked at: what `\\w` means differs between regular-expression
engines, and a vocabulary can hide a wrong border. So only these are let through to the proof. They were compared with `tokenizers`
on every code point in a dozen neighbourhoods, and on millions of random strings, with a vocabulary that has a merge for every two
bytes, so that no border can hide (tests/operators/test_token_backends.py does some of that again).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zephon.operators.token_backends.base import Ready, RefusedError

_LINES = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SLASHES = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_START = r"[^\r\n\p{L}\p{N}]?"
_O200K = rf"{_START}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_START}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
_TEKKEN = rf"{_START}{_UPPER}*{_LOWER}+|{_START}{_UPPER}+{_LOWER}*"

_DEEPSEEK = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
).replace(r"\"", '"')
_NUMBERS, _HAN_AND_KANA = r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+"

PATTERNS: Mapping[str, tuple[str, ...]] = {
    "llama-3": (rf"{_CONTRACTIONS}|{_START}\p{{L}}+|\p{{N}}{{1,3}}{_LINES}",),
    "qwen-2": (rf"{_CONTRACTIONS}|{_START}\p{{L}}+|\p{{N}}{_LINES}",),
    "qwen-3.5": (
        rf"{_CONTRACTIONS}|{_START}[\p{{L}}\p{{M}}]+|\p{{N}}"
        r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    "gpt-4o": (rf"{_O200K}|\p{{N}}{{1,3}}{_SLASHES}",),
    "tekken": (rf"{_TEKKEN}|\p{{N}}{_SLASHES}",),
    # its file has the characters themselves where the others write \r and \n
    "deepseek-v3": (_NUMBERS, _HAN_AND_KANA, _DEEPSEEK.replace(r"\r\n", "\r\n")),
}
"""The patterns of `Split` that are known, one after the other, by the model that brought them."""

_PAIRS = 50_000

_BYTES = frozenset(map(chr, [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100), *range(0x100, 0x144)]))
"""The characters that stand for the 256 bytes in byte-level vocabularies."""


def check(ready: Ready) -> None:
    """Raises `RefusedError` with the reason, for a tokenizer that is not known to be encoded alike."""
    plain = ready.plain
    _check_model(plain["model"])
    normalizer = plain.get("normalizer")
    if normalizer not in (None, {"type": "NFC"}, {"type": "Sequence", "normalizers": []}):
        raise RefusedError(f"the normalizer {normalizer.get('type')} is not one that was compared")
    before = plain.get("pre_tokenizer") or {"type": "none"}
    steps = before["pretokenizers"] if before["type"] == "Sequence" else [before]
    reason = _unknown_steps(steps)
    if reason:
        raise RefusedError(f"the pre-tokenizer is not one that was compared: {reason}")
    if not ready.allow_special:
        _check_borders(plain["added_tokens"])


def ignores_case(ready: Ready) -> bool:
    """Whether some pattern of the pre-tokenizer does."""
    before = ready.plain.get("pre_tokenizer") or {}
    return any("(?i" in str(step.get("pattern")) for step in before.get("pretokenizers", [before]))


def _check_borders(added: Sequence[Mapping[str, Any]]) -> None:
    """A special token that is left as text still hides, in `tokenizers`, an ordinary added token that begins inside of it."""
    special = [token["content"] for token in added if token["special"]]
    others = [token["content"] for token in added if not token["special"]]
    if len(special) * len(others) > _PAIRS:
        raise RefusedError(
            f"{len(special)} special and {len(others)} other tokens are added: too many to see whether they overlap"
        )
    for one in special:
        for other in others:
            if _overlap(one, other):
                raise RefusedError(f"the added tokens {one!r} and {other!r} can overlap in a text")


def _overlap(one: str, other: str) -> bool:
    return (
        one in other
        or other in one
        or any(one.endswith(other[:n]) or other.endswith(one[:n]) for n in range(1, min(len(one), len(other))))
    )


def _check_model(model: Mapping[str, Any]) -> None:
    kind = model.get("type") or ("BPE" if isinstance(model["vocab"], dict) and "merges" in model else "unknown")
    if kind != "BPE":
        raise RefusedError(f"the model is {kind}, not byte-level BPE")
    odd = [
        name
        for name in ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "byte_fallback")
        if model.get(name)
    ]
    if odd:
        raise RefusedError(f"the model has {', '.join(odd)}")
    if not model["vocab"].keys() >= _BYTES:
        raise RefusedError("the vocabulary lacks some of the 256 bytes")


def _unknown_steps(steps: list[Mapping[str, Any]]) -> str:
    """Why these steps are unknown; empty for a known pre-tokenizer: digits or a known pattern, if any, and bytes in the end."""
    *first, last = steps
    if last["type"] != "ByteLevel":
        return f"it ends with {last['type']}"
    if not first:
        return ""
    if last["add_prefix_space"]:
        return "a space before each part"
    if [step["type"] for step in first] == ["Digits"]:
        return "" if first[0]["individual_digits"] and last["use_regex"] else "digits in groups"
    if {step["type"] for step in first} != {"Split"}:
        return f"it begins with {first[0]['type']}"
    known = tuple(step["pattern"].get("Regex") for step in first) in PATTERNS.values()
    isolated = all((step["behavior"], bool(step["invert"])) == ("Isolated", False) for step in first)
    inverted = len(first) == 1 and (first[0]["behavior"], bool(first[0]["invert"])) == ("Removed", True)
    return "" if known and (isolated or inverted) and not last["use_regex"] else "a pattern of its own"
