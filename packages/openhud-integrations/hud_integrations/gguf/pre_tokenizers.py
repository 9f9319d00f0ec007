"""Ways of splitting a text before byte-level BPE, by their names in GGUF (`tokenizer.ggml.pre`).

A file holds the name alone; llama.cpp and published tokenizer.json files define the steps.
"""

from __future__ import annotations

from typing import Any

from hud.engine.chat.tokenizers.published_patterns import GPT2, LLAMA3, QWEN2, TEKKEN

PRE_TOKENIZERS: dict[str, str] = {
    "gpt-2": GPT2,
    "smollm": GPT2,
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "smaug-bpe"), LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), QWEN2),
    "tekken": TEKKEN,
}
"""Regular expression of each name; `smollm` splits off digits before it."""
IGNORING_MERGES = frozenset({"llama3", "llama-v3", "llama-bpe", "falcon3", "smaug-bpe", "tekken"})
"""Names whose tokenizers take a piece that is a token as it is."""
NORMALIZED = frozenset({"qwen2"})
"""Names whose published tokenizers compose characters (NFC) first."""


def split_steps(name: str) -> dict[str, Any]:
    """Return the `pre_tokenizer` of a tokenizer.json for a name of `PRE_TOKENIZERS`."""
    pattern = PRE_TOKENIZERS[name]
    steps: list[dict[str, Any]]
    if pattern == GPT2:  # ByteLevel has this pattern built in.
        level = byte_level(use_regex=True)
        if name == "gpt-2":
            return level
        steps = [{"type": "Digits", "individual_digits": True}, level]
    else:
        split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}
        steps = [{**split, "invert": False}, byte_level(use_regex=False)]
    return {"type": "Sequence", "pretokenizers": steps}


def byte_level(*, use_regex: bool) -> dict[str, Any]:
    """Return the step that spells bytes as characters."""
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }
