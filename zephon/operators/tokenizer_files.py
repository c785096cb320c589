"""Where tokenizers come from: a hub id, a folder, a file or an object; and which of their tokens mean begin, end and padding."""

from __future__ import annotations

import hashlib
import importlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar

import tokenizers
from tokenizers import Tokenizer

from zephon.errors import RecipeError
from zephon.notes import Notes

_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token")

_USUAL: dict[str, tuple[str, ...]] = {
    "bos_token": ("<s>", "<|begin_of_text|>", "<bos>", "<BOS>", "[BOS]", "<|bos|>", "<|startoftext|>", "<|endoftext|>"),
    "eos_token": ("</s>", "<|end_of_text|>", "<eos>", "<EOS>", "[EOS]", "<|eos|>", "<|endoftext|>"),
    "pad_token": ("<pad>", "<PAD>", "[PAD]", "<|pad|>", "<|padding|>", "<|finetune_right_pad_id|>"),
    "unk_token": ("<unk>", "<UNK>", "[UNK]"),
}
"""What the special tokens are called where nothing beside the tokenizer says so."""

_FACTS = 1
"""Raised where something that is noted of tokenizers is found out in another way than before."""

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


@dataclass(frozen=True)
class LoadedTokenizer:
    """A tokenizer and what is known of its special tokens."""

    fast: Tokenizer | None
    """The `tokenizers.Tokenizer`; None for a slow transformers tokenizer."""
    slow: Any
    """A transformers tokenizer without a fast one inside, or None."""
    special: Mapping[str, int]
    """`bos_token_id`, `eos_token_id`, `pad_token_id`, `unk_token_id`, those that are known."""

    text: ClassVar[str | None] = None
    """The `tokenizer.json` that it is made from; None: it is somebody's object."""

    def lend(self, *, encode_special_tokens: bool) -> Tokenizer | None:  # noqa: ARG002 - a default
        """`fast` itself with this setting, for the ids of ordinary text, where it is nobody else's; None: make a copy."""
        return None

    def noted(self, name: str, make: Callable[[], Any]) -> Any:  # noqa: ARG002 - a default
        """A fact of this name that follows from the tokenizer, as a plain value: made now, or once, where it is from a file."""
        return make()

    def has(self, token: int) -> bool:
        """Whether there is a token of this id."""
        if self.fast is None:
            return 0 <= token < len(self.slow)
        return 0 <= token < 2**31 and self.fast.id_to_token(token) is not None

    def check_ids(self, operator: str, ids: Mapping[str, int | None]) -> None:
        """Raises `RecipeError` for an id that the vocabulary doesn't have: a model would look it up beyond its embeddings."""
        for name, token in ids.items():
            if token is not None and not self.has(token):
                size = len(self.slow) if self.fast is None else self.fast.get_vocab_size()
                raise RecipeError(
                    f"{name} of {operator} is {token}; the tokenizer's vocabulary of {size:,} tokens has no such id"
                )


class _FromFile(LoadedTokenizer):
    """What a `tokenizer.json` holds. It is read in when something is asked that isn't noted: that takes longer than all else here."""

    def __init__(self, file: Path, data: bytes, text: str, named: Mapping[str, str]) -> None:
        rules = json.dumps([_FACTS, _USUAL, named], sort_keys=True)
        notes = Notes("tokenizer", data, rules, tokenizers.__version__)
        vars(self).update(slow=None, text=text, _file=file, _notes=notes, _guard=Lock(), _lent=None)
        vars(self)["special"] = notes.of("special", lambda: _special_of_fast(self.fast, named))

    def __getattr__(self, name: str) -> Any:
        if name != "fast":
            raise AttributeError(name)
        with vars(self)["_guard"]:
            if "fast" not in vars(self):
                vars(self)["fast"] = self._read()
        return vars(self)["fast"]

    def _read(self) -> Tokenizer:
        mine = vars(self)
        try:
            made = Tokenizer.from_str(mine["text"])
        except Exception as error:
            raise RecipeError(
                f"{str(mine['_file'])!r} is not a tokenizer file: {error}", hint="give a tokenizer.json"
            ) from error
        made.no_truncation()
        made.no_padding()
        return made

    def lend(self, *, encode_special_tokens: bool) -> Tokenizer | None:
        """One user sets what all find set."""
        fast: Any = self.fast
        mine = vars(self)
        with mine["_guard"]:
            if mine["_lent"] is None:
                fast.encode_special_tokens = mine["_lent"] = encode_special_tokens
            return fast if mine["_lent"] == encode_special_tokens else None

    def noted(self, name: str, make: Callable[[], Any]) -> Any:
        """Noted on disk, under the file's content."""
        return vars(self)["_notes"].of(name, make)

    def has(self, token: int) -> bool:
        """Whether there is a token of this id."""
        count = self.noted("ids without a gap", lambda: _ids_without_gap(self.fast))
        return 0 <= token < count if count else super().has(token)


def _ids_without_gap(tokenizer: Tokenizer) -> int:
    """The number of ids, where they are 0, 1, 2, … and no other; else 0."""
    numbers = set(tokenizer.get_vocab(with_added_tokens=True).values())
    return len(numbers) if numbers and max(numbers) == len(numbers) - 1 else 0


def load_tokenizer(spec: Any) -> LoadedTokenizer:
    """The tokenizer that `spec` means.

    Args:
        spec: a `tokenizers.Tokenizer`, a transformers tokenizer, the path of a folder or of a `tokenizer.json`, or a hub id.

    Raises:
        RecipeError: there is no such tokenizer, or it can't be read.
    """
    if isinstance(spec, LoadedTokenizer):
        return spec
    if isinstance(spec, Tokenizer):
        return LoadedTokenizer(spec, None, _special_of_fast(spec, {}))
    if isinstance(spec, str | Path):
        return _from_name(str(spec))
    inner = getattr(spec, "backend_tokenizer", None)
    if isinstance(inner, Tokenizer):
        return LoadedTokenizer(inner, None, _special_of_transformers(spec))
    if callable(spec) and hasattr(spec, "all_special_ids"):
        return LoadedTokenizer(None, spec, _special_of_transformers(spec))
    raise RecipeError(
        f"a {type(spec).__name__} is not a tokenizer",
        hint="give a tokenizers.Tokenizer, a transformers tokenizer, a path or a hub id",
    )


def special_ids(tokenizer: Any) -> dict[str, int]:
    """The ids of the special tokens that are known: `bos_token_id`, `eos_token_id`, `pad_token_id`, `unk_token_id`.

    `tokenizer` is anything that `load_tokenizer` takes; raises as it does.
    """
    return dict(load_tokenizer(tokenizer).special)


def content_hash(loaded: LoadedTokenizer) -> str:
    """16 hex digits of everything in the tokenizer that has to do with encoding; the same for any path it was loaded from."""
    return str(loaded.noted("content", lambda: _content_hash(loaded)))


def _content_hash(loaded: LoadedTokenizer) -> str:
    if loaded.fast is None:
        plain: Any = {
            "class": type(loaded.slow).__qualname__,
            "vocab": sorted(loaded.slow.get_vocab().items()),
            "special": sorted(loaded.slow.all_special_tokens),
        }
    else:
        plain = json.loads(loaded.fast.to_str())
        for name in ("truncation", "padding", "decoder", "version"):
            plain.pop(name, None)
        model = plain["model"]
        # older releases write a merge as "a b", newer ones as ["a", "b"]
        model["merges"] = [m if isinstance(m, str) else " ".join(m) for m in model.get("merges", ())]
        plain = _without_defaults(plain)
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _without_defaults(value: Any) -> Any:
    """Without the settings that are off, so that a release that knows more settings gives the same hash."""
    if isinstance(value, dict):
        return {k: v if k == "vocab" else _without_defaults(v) for k, v in value.items() if v is not None and v is not False}
    return value


def _from_name(name: str) -> LoadedTokenizer:
    file = file_of(name)
    if file is not None:
        return _read(file, [file.parent / n for n in _NAMING_FILES])
    if Path(name).expanduser().is_dir():
        return _from_transformers(name)
    if not _HUB_ID.fullmatch(name) or name.startswith(".") or name.endswith(".json"):  # a file in another folder
        raise RecipeError(f"there is no tokenizer file or folder {name!r}")
    return _from_hub(name)


def file_of(name: str) -> Path | None:
    """The `tokenizer.json` on this machine that a path means; None: it means none."""
    path = Path(name).expanduser()
    found = path / "tokenizer.json" if path.is_dir() else path
    return found if found.is_file() else None


def _read(file: Path, naming: Iterable[Path]) -> LoadedTokenizer:
    try:
        data = file.read_bytes()  # `read_text` takes three times as long for the megabytes of a vocabulary
        text = data.decode("utf-8")
    except (OSError, ValueError) as error:
        raise RecipeError(f"{str(file)!r} is not a tokenizer file: {error}", hint="give a tokenizer.json") from error
    return _FromFile(file, data, text, _named_in(naming))


_NAMING_FILES = ("special_tokens_map.json", "tokenizer_config.json")
"""The later one wins."""


def _from_hub(name: str) -> LoadedTokenizer:
    hub = _import("huggingface_hub", "transformers")
    hint = "check the name, or give the path of a folder with its tokenizer.json"

    def fetch(file: str, commit: str | None = None) -> Path | None:
        # Of a commit, what the cache holds is so. To ask the hub for each file again would take as many round trips, and where there is
        # no network, half a minute of the hub library's retries for each.
        known = None if commit is None else hub.try_to_load_from_cache(name, file, revision=commit)
        if known is not None:
            return Path(known) if isinstance(known, str) else None
        try:
            return Path(hub.hf_hub_download(name, file, revision=commit))
        except hub.errors.LocalEntryNotFoundError:
            # The hub didn't answer (this is a subclass of the next one). Missing is then only what the cache knows to be missing:
            # without the file that names its special tokens, a tokenizer would silently give other ids.
            if hub.try_to_load_from_cache(name, file) is None:
                raise
            return None
        except hub.errors.EntryNotFoundError:
            return None

    try:
        file = fetch("tokenizer.json")
        naming = [] if file is None else [fetch(n, file.parent.name) for n in _NAMING_FILES]  # its folder is its commit's
    except Exception as error:
        silent = isinstance(error, hub.errors.LocalEntryNotFoundError)
        raise RecipeError(
            f"the tokenizer {name!r} is neither a local path nor to be had from the hub: {type(error).__name__}: {error}",
            hint=f"{hint}; without a network, HF_HUB_OFFLINE=1 looks at once into the hub's cache alone" if silent else hint,
        ) from error
    if file is None:
        return _from_transformers(name)
    return _read(file, [n for n in naming if n is not None])


def _from_transformers(name: str) -> LoadedTokenizer:
    transformers = _import("transformers", "transformers")
    try:
        made = transformers.AutoTokenizer.from_pretrained(name)
    except Exception as error:
        raise RecipeError(f"{name!r} holds no tokenizer that can be loaded: {type(error).__name__}: {error}") from error
    return load_tokenizer(made)


def _import(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise RecipeError(
            f"this tokenizer needs {module!r}, which isn't installed", hint=f"pip install 'zephon[{extra}]'"
        ) from error


def _named_in(files: Iterable[Path]) -> dict[str, str]:
    """bos_token, eos_token, .. as text, from the files beside a tokenizer.json."""
    named: dict[str, str] = {}
    for file in files:
        if not file.is_file():
            continue
        try:
            settings = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise RecipeError(f"{str(file)!r} is not JSON: {error}") from error
        for name in _NAMES:
            value = settings.get(name)
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                named[name] = text
    return named


def _special_of_fast(tokenizer: Tokenizer, named: Mapping[str, str]) -> dict[str, int]:
    """By the names that are given, else by the usual names among the tokens that are marked special."""
    marked = {t.content for t in tokenizer.get_added_tokens_decoder().values() if t.special}
    ids: dict[str, int] = {}
    for name in _NAMES:
        usual = [text for text in _USUAL[name] if text in marked]
        for text in [named[name]] if name in named else usual[:1]:
            found = tokenizer.token_to_id(text)
            if found is not None:
                ids[f"{name}_id"] = int(found)
    return ids


def _special_of_transformers(tokenizer: Any) -> dict[str, int]:
    ids = {
        f"{name}_id": getattr(tokenizer, f"{name}_id", None) for name in _NAMES if getattr(tokenizer, name, None) is not None
    }
    return {name: int(value) for name, value in ids.items() if value is not None}
