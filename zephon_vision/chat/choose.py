"""Which chat template is used: a family's, found by the tokenizer's special tokens, or the tokenizer's own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zephon.errors import RecipeError, unknown
from zephon_vision.chat.base import Renderer
from zephon_vision.chat.chatml import QWEN2_VL_SYSTEM, ChatMl
from zephon_vision.chat.gemma import Gemma
from zephon_vision.chat.llama import Llama, llama4
from zephon_vision.chat.llava import VICUNA_SYSTEM, Llava, Plain
from zephon_vision.chat.mistral import Mistral
from zephon_vision.chat.own import OwnTemplate, check_template

NAMES = ("auto", "chatml", "plain", "llava", "gemma", "mistral", "llama4", "llama3", "own")

_SIGNS = {
    "<|im_start|>": "chatml",
    "<|start_header_id|>": "llama3",
    "<|header_start|>": "llama4",
    "<start_of_turn>": "gemma",
    "[INST]": "mistral",
}
_QWEN2_VL = ("qwen2_vl", "qwen2_5_vl")

WITH_BOS = ("llama3", "llama4", "gemma", "mistral")
"""Families whose template begins with the BOS token."""


def resolve(name: str, specials: Mapping[str, int], source: str | None) -> str:
    """The name of the template that `name` comes down to: `auto` is the tokenizer's own where it has one, else by its special tokens.

    Raises:
        RecipeError: an unknown name; nothing that tells; `own` and there is none.
    """
    if name not in NAMES:
        raise RecipeError(f"tokenize_interleaved: {unknown('template', name, NAMES)}")
    if name == "own" and source is None:
        raise RecipeError(
            "template='own', but the tokenizer has no chat template", hint="give it with chat_template=, or choose a family's"
        )
    if name != "auto":
        return name
    if source is not None:
        return "own"
    return next((family for sign, family in _SIGNS.items() if sign in specials), "plain")


def renderer(
    name: str,
    specials: Mapping[str, int],
    source: str | None,
    named: Mapping[str, str],
    placeholder: str,
    policy: str,
    system: str | None,
) -> Renderer:
    """The renderer of a resolved name.

    Args:
        specials: the tokenizer's special tokens and their ids.
        source: its chat template.
        named: `bos_token`, `eos_token`, .. as text.
        placeholder: what the family's own templates write for an image.
        policy: the image policy's name.
        system: a system prompt for chats without one; "" for none, None for what the family does.
    """
    end = named.get("eos_token", "</s>")
    if name == "chatml":
        return ChatMl(QWEN2_VL_SYSTEM if system is None and policy in _QWEN2_VL else system)
    if name == "llama3":
        return Llama(system=system)
    if name == "llama4":
        return llama4(system)
    if name == "gemma":
        return Gemma(system)
    if name == "mistral":
        return Mistral(end, system)
    if name == "llava":
        return Llava(end, VICUNA_SYSTEM if system is None else system)
    if name == "plain":
        return Plain(named.get("eos_token"))
    assert source is not None
    if system:
        raise RecipeError("system= has no part in the tokenizer's own chat template", hint="choose a family's template")
    check_template(source)
    return OwnTemplate(source, frozenset(specials), tuple(sorted(named.items())), placeholder)


def template_of(tokenizer: Any) -> str | None:
    """The chat template of a tokenizer as `load_tokenizer` takes it: an object, a folder or file, or a hub id; None: it has none.

    A processor's template (`chat_template.jinja`, `chat_template.json`) goes before the tokenizer's.
    """
    if isinstance(tokenizer, str | Path):
        path = Path(tokenizer).expanduser()
        if path.exists():
            folder = path if path.is_dir() else path.parent
            return _first(lambda name: (folder / name) if (folder / name).is_file() else None)
        return _first(_hub_files(str(tokenizer)))
    return _chosen(getattr(tokenizer, "chat_template", None))


def _first(find: Any) -> str | None:
    jinja = find("chat_template.jinja")
    if jinja is not None:
        return str(jinja.read_text(encoding="utf-8"))
    for name in ("chat_template.json", "tokenizer_config.json"):
        file = find(name)
        if file is None:
            continue
        try:
            found = _chosen(json.loads(file.read_text(encoding="utf-8")).get("chat_template"))
        except (ValueError, AttributeError) as error:
            raise RecipeError(f"{str(file)!r} is not JSON: {error}") from error
        if found is not None:
            return found
    return None


def _chosen(value: Any) -> str | None:
    """One template, or the default one of several by name."""
    if isinstance(value, list):
        value = {entry.get("name"): entry.get("template") for entry in value if isinstance(entry, dict)}
    if isinstance(value, Mapping):
        value = value.get("default")
    return value if isinstance(value, str) else None


def _hub_files(name: str) -> Any:
    def fetch(file: str) -> Path | None:
        import huggingface_hub as hub  # noqa: PLC0415 - only for hub ids

        try:
            return Path(hub.hf_hub_download(name, file))
        except hub.errors.EntryNotFoundError:
            return None

    return fetch
