"""The tokenizer of a model folder, refused where its steps may take hours or a machine's memory for one text.

A tokenizer.json comes with downloaded weights, and its steps run in native code that nothing interrupts: a normalizer that
doubles a letter 34 times takes the machine's memory for one letter, a regular expression that backtracks takes hours. So
growth is bounded before the file is loaded, and files without a known bound on their time encode in a process with limits
(`prompt_process.py`), after a trial when a model is added.
"""

from __future__ import annotations

import json
import os
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from hud.engine.chat.tokenizers.limits import parsed
from hud.engine.chat.tokenizers.published_patterns import NAME_PARTS, PUBLISHED_PATTERNS
from hud.engine.chat.tokenizers.tokenizer_trial import trial_problem
from hud.errors import NotFoundError, StoreError, UsageError

MOST_GROWTH = 4096
"""Bound on how many times as many bytes a text, or decoded tokens, may become. Published tokenizers reach some hundreds."""
LONGEST_TOKEN = 4096
"""Longest token of a vocabulary, in characters."""
LONGEST_DECODED = 1 << 14
"""Longest text of one token, in bytes after the largest growth of the decoder."""
LARGEST_FILE = 128 << 20
"""Largest tokenizer.json in bytes; published files have up to 40 MB."""
MOST_CHARACTERS = 1 << 26
"""Longest text that is encoded, in characters after its largest growth."""
_MOST_STEPS = 32
"""Number of steps of a file that is used in this process."""
_LONGEST_WORD = 200
"""Longest word of WordPiece in this process: time is quadratic in it. Published files have 100."""
_LONGEST_PIECE = 256
"""Longest token of Unigram in this process: each character may begin as many tokens."""
_LONGEST_AFFIX = 64
"""Longest mark of a word's inside or end in this process: it is copied for each character."""
_OLD_NAME_PARTS = r"[A-Za-z]+(?=-)|(?<=-)[A-Za-z]+|[-0-9]"
"""The parts of `NAME_PARTS` in time quadratic in a run of letters, in folders of earlier versions."""
_KINDS = frozenset(
    {"Sequence", "Replace", "Prepend", "Strip", "StripAccents", "Lowercase", "Precompiled", "Nmt"}
    | {"NFC", "NFD", "NFKC", "NFKD", "BertNormalizer", "BertPreTokenizer", "ByteLevel", "Metaspace"}
    | {"Split", "CharDelimiterSplit", "Whitespace", "WhitespaceSplit", "Punctuation", "Digits"}
    | {"UnicodeScripts"}
)
"""Steps before the model whose time is proportional to a text, but for their patterns."""
_UNICODE = {"NFC": 3, "NFD": 3, "NFKC": 11, "NFKD": 11, "Lowercase": 3, "BertNormalizer": 9}
"""Largest growth of normal forms in UTF-8 (Unicode Standard Annex 15), and of lower case."""
_STEPS = {"ByteLevel": 3, "BPEDecoder": 2, "WordPiece": 2, "CTC": 3, "Metaspace": 5}
"""Growth of other steps: bytes spelled as characters, marks for spaces, delimiters between any two characters."""


# A batch, which frees Python's lock, would otherwise start threads that warn of each later fork.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@dataclass(frozen=True)
class LoadedTokenizer:
    """A tokenizer with the bounds of its file."""

    tokenizer: Tokenizer
    """Without its normalizer and pre-tokenizer where `text` is set: it decodes, and encodes nothing."""
    growth: float
    """Bound on the growth of a text that is encoded."""
    text: str | None
    """The file, if its time for a text has no known bound: `PromptProcess` encodes with it."""


def load_tokenizer(folder: Path) -> LoadedTokenizer:
    """Return the tokenizer of a folder.

    Raises `NotFoundError`, `StoreError` for a damaged file, `UsageError` for unbounded growth.
    """
    path = folder / "tokenizer.json"
    try:
        described = json.loads(text := _read(path))
    except FileNotFoundError:
        raise NotFoundError(f"{folder} has no tokenizer.json.") from None
    except (ValueError, OSError, RecursionError) as error:
        raise StoreError(f"{path} is damaged: {error}. Restore it from a copy.") from error
    try:
        growth, usual = _check(path, described), _is_usual(described)
    except (AttributeError, TypeError, ValueError, KeyError, RecursionError, IndexError) as error:
        raise StoreError(
            f"{path} is damaged: {type(error).__name__}: {error}. Restore it from a copy."
        ) from error
    in_process = {**described, "normalizer": None, "pre_tokenizer": None}
    try:
        tokenizer = parsed(text if usual else json.dumps(in_process))
    except ValueError as error:
        raise StoreError(f"{path} is damaged: {error}. Restore it from a copy.") from error
    return LoadedTokenizer(tokenizer, growth, None if usual else text)


def try_tokenizer(folder: Path, vocab_size: int) -> None:
    """Load the tokenizer of a new model.

    Raises as `load_tokenizer`, and `UsageError` for ids that the model has no embedding for, and if texts of its own
    patterns take long.
    """
    loaded = load_tokenizer(folder)
    _check_ids(folder / "tokenizer.json", loaded.tokenizer, vocab_size)
    if loaded.text is None:
        return
    problem = trial_problem(loaded.text, list(_patterns(json.loads(loaded.text))))
    if problem is not None:
        raise UsageError(
            f"{folder / 'tokenizer.json'} {problem}. Use a model with another tokenizer."
        )


def _check_ids(path: Path, tokenizer: Tokenizer, vocab_size: int) -> None:
    """Raise `UsageError` for a token of text beyond the vocabulary.

    A special token may be there, as that of pictures is in Gemma 3 for text: no text becomes one.
    """
    special = {id_ for id_, added in tokenizer.get_added_tokens_decoder().items() if added.special}
    last = max(
        (id_ for id_ in tokenizer.get_vocab(with_added_tokens=True).values() if id_ not in special),
        default=0,
    )
    if last >= vocab_size:
        raise UsageError(
            f"{path} has the token id {last}; the model of its folder knows {vocab_size} tokens. Use the tokenizer that the "
            "weights were trained with."
        )


def _read(path: Path) -> str:
    """Return the text of a tokenizer.json. Raises `ValueError` for one that is too large."""
    size = path.stat().st_size
    if size > LARGEST_FILE:
        raise ValueError(f"it has {size:,} bytes, and {LARGEST_FILE:,} are the most")
    text = path.read_text(encoding="utf-8")
    # The new pattern ends with the old one.
    return text if NAME_PARTS in text else text.replace(_OLD_NAME_PARTS, NAME_PARTS)


def _is_usual(described: dict[str, Any]) -> bool:
    """Return True for a file whose time is proportional to a text, with a small factor."""
    model, steps = described["model"], list(_steps(described))
    affixes = [model.get("continuing_subword_prefix"), model.get("end_of_word_suffix")]
    longest = max(map(len, _vocabulary(model)), default=0)
    # The text before such a token is searched at each of its places.
    searching = any(
        token.get("lstrip") or token.get("single_word")
        for token in described.get("added_tokens") or []
    )
    return (
        PUBLISHED_PATTERNS.issuperset(_patterns(described))
        and _KINDS.issuperset(step["type"] for step in steps)
        and len(steps) <= _MOST_STEPS
        and (model.get("max_input_chars_per_word") or 0) <= _LONGEST_WORD
        and max(len(affix or "") for affix in affixes) <= _LONGEST_AFFIX
        and (model["type"] != "Unigram" or longest <= _LONGEST_PIECE)
        and not searching
    )


def _patterns(described: dict[str, Any]) -> Iterator[str]:
    """Yield the regular expressions of all steps before the model."""
    for step in _steps(described):
        pattern = (step.get("pattern") or {}).get("Regex")
        if pattern is not None:
            yield str(pattern)


def _steps(described: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield every step before the model, those of sequences included."""
    return _unpacked(described.get("normalizer"), described.get("pre_tokenizer"))


def _unpacked(*steps: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    waiting = list(steps)
    while waiting:
        step = waiting.pop()
        if step is not None:
            yield step
            waiting += _inner(step)


def _inner(step: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the steps of a sequence."""
    names = ("normalizers", "pretokenizers", "decoders")
    return [inner for name in names for inner in step.get(name) or []]


def _check(path: Path, described: dict[str, Any]) -> float:
    """Return a bound on the growth of a text that is encoded. Raises `UsageError` for a larger one than is allowed."""
    encoding = _growth(described.get("normalizer")) * _growth(described.get("pre_tokenizer"))
    decoding = _growth(described.get("decoder"))
    for name, growth in (("encodes", encoding), ("decodes", decoding)):
        if growth > MOST_GROWTH:
            raise UsageError(
                f"{path} {name} with steps that may make a text {growth:,.0f} times as long; {MOST_GROWTH:,} times is the "
                "most. Use a model with another tokenizer."
            )
    if any("Regex" in (step.get("pattern") or {}) for step in _unpacked(described.get("decoder"))):
        raise UsageError(
            f"{path} decodes with a regular expression, whose time has no bound. Use a model with another tokenizer."
        )
    texts = _vocabulary(described["model"])
    texts += [token["content"] for token in described.get("added_tokens") or []]
    longest = max(map(len, texts), default=0)
    most = min(LONGEST_TOKEN, int(LONGEST_DECODED / decoding))
    if longest > most:
        raise UsageError(
            f"{path} holds a token of {longest:,} characters; {most:,} are the most with its decoder. Use a model with "
            "another tokenizer."
        )
    return encoding


def _vocabulary(model: dict[str, Any]) -> list[str]:
    """Return the texts of a model's tokens."""
    return [entry if isinstance(entry, str) else entry[0] for entry in model.get("vocab") or {}]


def _growth(step: dict[str, Any] | None) -> float:
    """Return a bound on the growth of a text in a step: the product over a sequence's."""
    if step is None:
        return 1.0
    kind = step["type"]
    growth = 1.0
    for inner in _inner(step):
        growth *= _growth(inner)
    if kind == "Replace":
        growth *= _replaced(step)
    if kind == "Prepend":
        growth *= 1 + len(step["prepend"].encode())
    if kind == "Precompiled":
        growth *= _longest_replacement(step["precompiled_charsmap"])
    return growth * _UNICODE.get(kind, 1) * _STEPS.get(kind, 1)


def _replaced(step: dict[str, Any]) -> float:
    """Return the growth of a replacement. A regular expression may match each character, and between any two."""
    content = len(step["content"].encode())
    literal = step["pattern"].get("String")
    return max(1.0, content / len(literal.encode())) if literal else 1.0 + content


def _longest_replacement(charsmap: str | None) -> int:
    """Return a bound on the growth of SentencePiece's table: its longest replacement, or of a text that it leaves, 1.

    The table is the length of a trie in four bytes, the trie, and the replacements, each ended by a zero.
    """
    table = b64decode(charsmap or "")
    start = 4 + int.from_bytes(table[:4], "little")
    return max(1, *map(len, table[start:].split(b"\0")))
