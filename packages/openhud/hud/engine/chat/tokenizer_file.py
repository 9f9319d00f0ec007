"""The tokenizer of a model folder, refused where its steps may take hours or a machine's memory for one text.

A tokenizer.json comes with downloaded weights, and its steps run in native code that nothing interrupts: a normalizer that
doubles a letter 34 times takes the machine's memory for one letter, a regular expression that backtracks takes hours. So
growth is bounded before the file is loaded, and files with patterns of their own pass a trial first.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from hud.engine.chat.tokenizer_trial import trial_problem
from hud.errors import NotFoundError, StoreError, UsageError

MOST_GROWTH = 4096
"""Bound on how many times as many bytes a text, or decoded tokens, may become. Published tokenizers reach some hundreds."""
LONGEST_TOKEN = 4096
"""Longest token of a vocabulary, in characters."""
MOST_CHARACTERS = 1 << 26
"""Longest text that is encoded, in characters after its largest growth."""
_MOST_STEPS = 32
"""Number of steps of a file without a trial."""
_LONGEST_WORD = 200
"""Longest word of WordPiece without a trial: time is quadratic in it. Published files have 100."""
NAME_PARTS = r"(?<![A-Za-z])[A-Za-z]+(?=-)|(?<=-)[A-Za-z]+|[-0-9]"
"""Tiny models: parts of names with hyphens. The first look behind keeps its time proportional to a run of letters."""
_OLD_NAME_PARTS = r"[A-Za-z]+(?=-)|(?<=-)[A-Za-z]+|[-0-9]"
"""The same parts in time quadratic in a run of letters, in folders of earlier versions."""
WORDS = r" ?\S+|\s+"
"""Tiny models: words, each with the space before it."""
_TRIED_PATTERNS = frozenset(
    {
        NAME_PARTS,
        WORDS,
        # Llama 3, Qwen 2.5 and Qwen 3.
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    }
)
"""Patterns of usual models, which passed the trial."""
_UNICODE = {"NFC": 3, "NFD": 3, "NFKC": 11, "NFKD": 11, "Lowercase": 3, "BertNormalizer": 9}
"""Largest growth of normal forms in UTF-8 (Unicode Standard Annex 15), and of lower case."""
_STEPS = {"Precompiled": 33, "ByteLevel": 3, "BPEDecoder": 2, "WordPiece": 2, "Metaspace": 3}
"""Growth of other steps: bytes spelled as characters, characters replaced by a table, marks for spaces."""


# A batch, which frees Python's lock, would otherwise start threads that warn of each later fork.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@dataclass(frozen=True)
class LoadedTokenizer:
    """A tokenizer with the bounds of its file."""

    tokenizer: Tokenizer
    growth: float
    """Bound on the growth of a text that is encoded."""
    tried: bool
    """True for steps without a known bound on time, which passed a trial."""


def load_tokenizer(folder: Path) -> LoadedTokenizer:
    """Return the tokenizer of a folder.

    Raises `NotFoundError`, `StoreError` for a damaged file, `UsageError` for unbounded growth and for a failed trial.
    """
    path = folder / "tokenizer.json"
    try:
        text = path.read_text(encoding="utf-8")
        if NAME_PARTS not in text:  # The new pattern ends with the old one.
            text = text.replace(_OLD_NAME_PARTS, NAME_PARTS)
        described = json.loads(text)
    except FileNotFoundError:
        raise NotFoundError(f"{folder} has no tokenizer.json.") from None
    except (ValueError, OSError, RecursionError) as error:
        raise StoreError(f"{path} is damaged: {error}.") from error
    try:
        growth = _check(path, described)
        patterns, needed = list(_patterns(described)), _needs_trial(described)
    except (AttributeError, TypeError, ValueError, KeyError, RecursionError) as error:
        raise StoreError(f"{path} is damaged: {type(error).__name__}: {error}.") from error
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # tokenizers raises bare Exception
        raise StoreError(f"{path} is damaged: {error}.") from error
    problem = trial_problem(text, patterns) if needed else None
    if problem is not None:
        raise UsageError(f"{path} {problem}. Use a model with another tokenizer.")
    return LoadedTokenizer(tokenizer, growth, needed)


def _needs_trial(described: dict[str, Any]) -> bool:
    """Return whether time may be more than proportional to a text, or the factor large."""
    others = not _TRIED_PATTERNS.issuperset(_patterns(described))
    steps = sum(1 for _ in _steps(described))
    words = described["model"].get("max_input_chars_per_word") or 0
    return others or steps > _MOST_STEPS or words > _LONGEST_WORD


def _patterns(described: dict[str, Any]) -> Iterator[str]:
    """Yield the regular expressions of all steps."""
    for step in _steps(described):
        pattern = (step.get("pattern") or {}).get("Regex")
        if pattern is not None:
            yield str(pattern)


def _steps(described: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield every step, those of sequences included."""
    waiting = [described.get(name) for name in ("normalizer", "pre_tokenizer", "decoder")]
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
    return encoding


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
    return growth * _UNICODE.get(kind, 1) * _STEPS.get(kind, 1)


def _replaced(step: dict[str, Any]) -> float:
    """Return the growth of a replacement. A regular expression may match each character, and between any two."""
    content = len(step["content"].encode())
    literal = step["pattern"].get("String")
    return max(1.0, content / len(literal.encode())) if literal else 1.0 + content
