"""Settings beside a folder's tokenizer.json: its special tokens and its chat templates, chosen as `transformers` does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hud.errors import StoreError, UsageError

SPECIAL_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
"""Names of the special tokens that a chat template may read."""
DEFAULT, TOOL_USE = "default", "tool_use"
"""Names of a folder's chat templates: for conversations without tools, and with them."""

TEMPLATE_FOLDER = "additional_chat_templates"
"""Subfolder of a model folder with templates other than the default one."""


_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "preprocessor_config.json",
    "processor_config.json",
)


def format_files(folder: Path) -> list[Path]:
    """Return the files that make a folder's chat format, those that are missing included."""
    return [*(folder / name for name in _FILES), *_further_templates(folder)]


def special_tokens(folder: Path) -> dict[str, str]:
    """Return the special tokens that a folder's tokenizer has, by name; a token that it lacks is no key."""
    settings = read_json(folder / "tokenizer_config.json")
    if "added_tokens_decoder" not in settings:
        # Folders of releases before added_tokens_decoder keep the tokens in a file of their own, which wins.
        settings = {**settings, **read_json(folder / "special_tokens_map.json")}
    texts = {name: _token_text(settings.get(name)) for name in SPECIAL_TOKENS}
    further = settings.get("extra_special_tokens")  # Such as image_token; a list has no names.
    if isinstance(further, Mapping):
        texts.update({name: _token_text(token) for name, token in further.items()})
    return {name: text for name, text in texts.items() if text is not None}


def chat_templates(folder: Path) -> dict[str, str]:
    """Return a folder's chat templates by name: `default`, and `tool_use` where conversations with tools have their own.

    Template files win over tokenizer_config.json. Raises `UsageError` where there is none.
    """
    named = {path.stem: _read_template(path) for path in _further_templates(folder)}
    alone = folder / "chat_template.jinja"
    if alone.exists():
        named[DEFAULT] = _read_template(alone)
    settings = folder / "tokenizer_config.json"
    named = named or _named(read_json(settings).get("chat_template"), settings)
    templates = {name: named[name] for name in (DEFAULT, TOOL_USE) if named.get(name)}
    if not templates:
        others = f", named {DEFAULT} or {TOOL_USE}" if named else ""
        raise UsageError(
            f"{folder} has no chat template{others} (chat_template.jinja, or in tokenizer_config.json)."
        )
    return templates


def _read_template(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (ValueError, OSError) as error:
        raise StoreError(f"{path} cannot be read: {error}.") from error


def _further_templates(folder: Path) -> list[Path]:
    return sorted((folder / TEMPLATE_FOLDER).glob("*.jinja"))


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a file; {} for no file. Raises `StoreError` for a file that holds none."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (ValueError, OSError, RecursionError) as error:
        raise StoreError(f"{path} cannot be read: {error}.") from error
    if not isinstance(values, dict):
        raise StoreError(f"{path} holds no JSON object.")
    return values


def _named(template: Any, path: Path) -> dict[str, str]:
    """Return the templates of a setting: one text, a mapping of names to texts, or a list of {name, template}."""
    if not template:
        return {}
    if isinstance(template, list):
        try:
            template = {entry["name"]: entry["template"] for entry in template}
        except (KeyError, TypeError):
            template = None
    named = template if isinstance(template, Mapping) else {DEFAULT: template}
    if not all(isinstance(text, str) for pair in named.items() for text in pair):
        raise StoreError(f"{path}: chat_template is neither a text nor a list of named texts.")
    return dict(named)


def _token_text(value: Any) -> str | None:
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None
