"""Regular expressions of published tokenizers, whose time is proportional to a text: they match in the server's process."""

from __future__ import annotations

NAME_PARTS = r"(?<![A-Za-z])[A-Za-z]+(?=-)|(?<=-)[A-Za-z]+|[-0-9]"
"""Tiny models: parts of names with hyphens. The first look behind keeps its time proportional to a run of letters."""
WORDS = r" ?\S+|\s+"
"""Tiny models: words, each with the space before it."""

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_START = r"[^\r\n\p{L}\p{N}]?"


def _cased(digits: str, contractions: str) -> str:
    """Return the form of GPT-4o: words by case."""
    return (
        rf"{_START}{_UPPER}*{_LOWER}+{contractions}|{_START}{_UPPER}+{_LOWER}*{contractions}"
        rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
    )


GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{_CONTRACTIONS}|{_START}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
"""Llama 3 and GLM."""
QWEN2 = rf"{_CONTRACTIONS}|{_START}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
"""Qwen 2.5 and Qwen 3."""
TEKKEN = _cased(r"\p{N}", "")
"""Mistral's Tekken."""

PUBLISHED_PATTERNS = frozenset(
    {
        NAME_PARTS,
        WORDS,
        GPT2,
        LLAMA3,
        QWEN2,
        # Qwen 3.5.
        rf"{_CONTRACTIONS}|{_START}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}",
        # GPT-4o, gpt-oss, Llama 4.
        _cased(r"\p{N}{1,3}", rf"{_CONTRACTIONS}?"),
        TEKKEN,
        # DeepSeek V3 and R1.
        r"\p{N}{1,3}",
        "[一-龥\u3040-ゟ゠-ヿ]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
        rf"|{_SPACES}",
        # DeepSeek LLM and Coder; Falcon.
        r"[\r\n]",
        r"\s?\p{L}+",
        r"\s?\p{P}+",
        r"\p{N}",
        r"\p{N}+",
        "[0-9][0-9][0-9]",
        # BLOOM.
        r" ?[^(\s|[.,!?…。，、।۔،])]+",
        # Models of SentencePiece, BERT and CLIP.
        " {2,}",
        r"\s+",
        r"\n",
        r"[\n\r\t]",
        r"\s{2,}|[\n\r\t]",
        r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    }
)
