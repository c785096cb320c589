"""Real tokenizers of the kinds in use, trained on the sources of the standard library."""

from __future__ import annotations

import argparse
import functools
import inspect
import json
import textwrap

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

KINDS = ("gpt2", "bert", "t5", "llama", "words")
BYTES = [f"<0x{i:02X}>" for i in range(256)]


@functools.cache
def real_texts() -> tuple[str, ...]:
    """Paragraphs of real text and code."""
    text = "\n".join(inspect.getsource(module) for module in (argparse, json, textwrap, inspect))
    return tuple(part for part in text.split("\n\n") if part.strip())


def tokenizer(kind: str) -> Tokenizer:
    """A tokenizer of its own, of this kind."""
    return Tokenizer.from_str(_trained(kind))


@functools.cache
def _trained(kind: str) -> str:
    make = {"gpt2": _gpt2, "bert": _bert, "t5": _t5, "llama": _llama, "words": _words}
    return make[kind]().to_str()


def _gpt2() -> Tokenizer:
    """Byte-level BPE, no special tokens added, BOS = EOS."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=1000,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(real_texts(), trainer)
    return made


def _bert() -> Tokenizer:
    """WordPiece with [CLS] and [SEP]."""
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=1000, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"], show_progress=False
    )
    made.train_from_iterator(real_texts(), trainer)
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return made


def _t5() -> Tokenizer:
    """Unigram, EOS added."""
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=400, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    made.train_from_iterator(real_texts()[:150], trainer)
    made.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return made


def _llama() -> Tokenizer:
    """BPE with byte fallback and no pre-tokenizer; BOS added."""
    made = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(
        vocab_size=900, max_token_length=16, special_tokens=["<unk>", "<s>", "</s>", *BYTES], show_progress=False
    )
    made.train_from_iterator([t[:400] for t in real_texts()[:200]], trainer)
    plain = json.loads(made.to_str())
    for token in plain["added_tokens"]:
        token["special"] = token["content"] in ("<unk>", "<s>", "</s>")
    plain["added_tokens"] = [t for t in plain["added_tokens"] if t["special"]]
    made = Tokenizer.from_str(json.dumps(plain))
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return made


def _words() -> Tokenizer:
    """Whole words, in which special tokens are words like others."""
    made = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordLevelTrainer(vocab_size=500, special_tokens=["[UNK]", "[BOS]", "[EOS]"], show_progress=False)
    made.train_from_iterator(real_texts(), trainer)
    return made
