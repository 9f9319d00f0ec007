"""The tokenizer of a model folder, refused where its steps may make a text many times as long.

A tokenizer.json comes with downloaded weights, and its steps run in native code that nothing interrupts: a normalizer that
doubles a letter 34 times takes the machine's memory for one letter. So growth is bounded before the file is loaded.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from hud.errors import NotFoundError, StoreError, UsageError

MOST_GROWTH = 4096
"""Bound on how many times as many bytes a text, or decoded tokens, may become. Published tokenizers reach some hundreds."""
LONGEST_TOKEN = 4096
"""Longest token of a vocabulary, in characters."""
_UNICODE = {"NFC": 3, "NFD": 3, "NFKC": 11, "NFKD": 11, "Lowercase": 3, "BertNormalizer": 9}
"""Largest growth of normal forms in UTF-8 (Unicode Standard Annex 15), and of lower case."""
_STEPS = {"Precompiled": 33, "ByteLevel": 3, "BPEDecoder": 2, "WordPiece": 2, "Metaspace": 3}
"""Growth of other steps: bytes spelled as characters, characters replaced by a table, marks for spaces."""


def load_tokenizer(folder: Path) -> Tokenizer:
    """Return the tokenizer of a folder. Raises `NotFoundError`, `StoreError` if damaged, `UsageError` for unbounded growth."""
    path = folder / "tokenizer.json"
    try:
        text = path.read_text(encoding="utf-8")
        described = json.loads(text)
    except FileNotFoundError:
        raise NotFoundError(f"{folder} has no tokenizer.json.") from None
    except (ValueError, OSError, RecursionError) as error:
        raise StoreError(f"{path} is damaged: {error}.") from error
    try:
        _check(path, described)
    except (AttributeError, TypeError, ValueError, KeyError, RecursionError) as error:
        raise StoreError(f"{path} is damaged: {type(error).__name__}: {error}.") from error
    try:
        return Tokenizer.from_str(text)
    except Exception as error:  # tokenizers raises bare Exception
        raise StoreError(f"{path} is damaged: {error}.") from error


def _check(path: Path, described: dict[str, Any]) -> None:
    encoding = _growth(described.get("normalizer")) * _growth(described.get("pre_tokenizer"))
    for name, growth in (("encodes", encoding), ("decodes", _growth(described.get("decoder")))):
        if growth > MOST_GROWTH:
            raise UsageError(
                f"{path} {name} with steps that may make a text {growth:,.0f} times as long; {MOST_GROWTH:,} times is the "
                "most. Use a model with another tokenizer."
            )
    vocabulary = described["model"].get("vocab") or {}
    texts = [entry if isinstance(entry, str) else entry[0] for entry in vocabulary]
    texts += [token["content"] for token in described.get("added_tokens") or []]
    longest = max(map(len, texts), default=0)
    if longest > LONGEST_TOKEN:
        raise UsageError(
            f"{path} holds a token of {longest:,} characters; {LONGEST_TOKEN:,} are the most. Use a model with another "
            "tokenizer."
        )


def _growth(step: dict[str, Any] | None) -> float:
    """Return a bound on the growth of a text in a step: the product over a sequence's."""
    if step is None:
        return 1.0
    kind = step["type"]
    inner = [
        *(step.get("normalizers") or []),
        *(step.get("pretokenizers") or []),
        *(step.get("decoders") or []),
    ]
    growth = 1.0
    for one in inner:
        growth *= _growth(one)
    if kind == "Replace":
        growth *= _replaced(step)
    if kind == "Prepend":
        growth *= 1 + len(step["prepend"].encode())
    return growth * _UNICODE.get(kind, 1) * _STEPS.get(kind, 1)


def _replaced(step: dict[str, Any]) -> float:
    """Return the growth of a replacement. A regular expression may match each character, and between any two."""
    content = len(step["content"].encode())
    literal = step["pattern"].get("String")
    return max(1.0, content / len(literal.encode())) if literal else 1.0 + content
