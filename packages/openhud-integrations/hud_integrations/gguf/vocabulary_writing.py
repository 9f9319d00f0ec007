"""The tokenizer and chat templates of a Hugging Face folder as the metadata of a GGUF file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from hud.engine.chat.tokenizer_settings import DEFAULT, chat_templates, read_json, special_tokens
from hud.engine.config import DecoderConfig
from hud.errors import UsageError
from hud_integrations.gguf.pre_tokenizers import (
    IGNORING_MERGES,
    NORMALIZED,
    PRE_TOKENIZERS,
    split_steps,
)
from hud_integrations.gguf.vocabulary import Kind

_ENDS = ("eos", "eot", "eom")
"""Tokens that end a turn, in the order in which a file names them."""
_PROBES = (
    "Hello world, it's 3.14159 or 1234567 times; I'VE we'll don't",
    "\n\n \n  \t\t tabs\r\n and    spaces  \n",
    "caf\u00e9 e\u0301t\u00e9 \u0645\u0631\u062d\u0628\u0627 \u4f60\u597d\uff0c\u4e16\u754c \U0001f680\U0001f468\u200d\U0001f469 ------=======",
    "def f(x):\n    return {'a': [x ** 2, \"b\"]}  # !!$$3 4\u00bd\u2167 ABCdefGHI",
)
"""Texts over letters, marks, numbers, spaces and signs, which ways of splitting cut differently."""


def vocabulary_metadata(folder: Path, config: DecoderConfig) -> dict[str, Any]:
    """Return the metadata of a folder's tokenizer. Raises `UsageError` for one that GGUF cannot hold exactly."""
    described = read_json(folder / "tokenizer.json")
    model = described.get("model", {})
    if model.get("type") != "BPE":
        raise _problem(f"is of the kind {model.get('type')!r}; GGUF is written for BPE")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokens, kinds = _tokens(tokenizer, described, config.vocab_size)
    metadata: dict[str, Any] = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        **_special(folder, tokenizer, config),
        **_templates(folder),
    }
    if model.get("byte_fallback"):
        return metadata | _sentence_pieces(model, described, tokens)
    merges = [" ".join(merge) if isinstance(merge, list) else merge for merge in model["merges"]]
    return metadata | {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre_tokenizer_name(tokenizer, described),
        "tokenizer.ggml.merges": merges,
    }


def pre_tokenizer_name(tokenizer: Tokenizer, described: dict[str, Any]) -> str:
    """Return the name of a tokenizer's way of splitting texts: that which makes the same pieces of every probe.

    Raises `UsageError` where there is none.
    """
    ignores = bool(described["model"].get("ignore_merges"))
    for name in PRE_TOKENIZERS:
        if ignores != (name in IGNORING_MERGES):
            continue
        normalizer = {"type": "NFC"} if name in NORMALIZED else None
        steps = {"normalizer": normalizer, "pre_tokenizer": split_steps(name)}
        named = Tokenizer.from_str(json.dumps({**described, **steps}))
        if all(_pieces(named, probe) == _pieces(tokenizer, probe) for probe in _PROBES):
            return name
    raise _problem("splits texts in a way that GGUF has no name for")


def _pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    """Return the pieces of a text within which tokens are merged."""
    if tokenizer.normalizer is not None:
        text = tokenizer.normalizer.normalize_str(text)
    if tokenizer.pre_tokenizer is None:
        return [text]
    return [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]


def _tokens(
    tokenizer: Tokenizer, described: dict[str, Any], size: int
) -> tuple[list[str], list[int]]:
    """Return the texts and kinds of all `size` rows of the embedding."""
    ids = tokenizer.get_vocab(with_added_tokens=True)
    if max(ids.values()) >= size:
        raise _problem(f"has the token id {max(ids.values()):,}; the model has {size:,} tokens")
    tokens, kinds = [f"[PAD{index}]" for index in range(size)], [int(Kind.UNUSED)] * size
    bytewise = bool(described["model"].get("byte_fallback"))
    for token, index in ids.items():
        is_byte = bytewise and len(token) == 6 and token.startswith("<0x") and token.endswith(">")
        tokens[index], kinds[index] = token, int(Kind.BYTE if is_byte else Kind.NORMAL)
    for added in described.get("added_tokens", []):
        kinds[added["id"]] = int(Kind.CONTROL if added["special"] else Kind.USER_DEFINED)
    unknown = described["model"].get("unk_token")
    if bytewise and unknown in ids:
        kinds[ids[unknown]] = int(Kind.UNKNOWN)
    return tokens, kinds


def _special(folder: Path, tokenizer: Tokenizer, config: DecoderConfig) -> dict[str, Any]:
    """Return the ids of special tokens, and whether a text begins with the first of them."""
    texts = special_tokens(folder)
    ids = {name.removesuffix("_token"): tokenizer.token_to_id(text) for name, text in texts.items()}
    ends = list(config.eos_token_ids)
    eos = ids.get("eos")
    if eos is not None:
        # The tokenizer's own end first: readers take that as the text of its eos token.
        ends = list(dict.fromkeys([eos, *ends]))
    if len(ends) > len(_ENDS):
        raise _problem(f"ends turns by {len(ends)} tokens; a GGUF file names {len(_ENDS)}")
    named: dict[str, int | None] = dict(zip(_ENDS, ends, strict=False))
    named |= {"unknown": ids.get("unk"), "padding": ids.get("pad")}
    named["bos"] = config.bos_token_id if ids.get("bos") is None else ids["bos"]
    begins = tokenizer.encode("a").ids[:1] == [named["bos"]]
    return {
        **{
            f"tokenizer.ggml.{name}_token_id": index
            for name, index in named.items()
            if index is not None
        },
        "tokenizer.ggml.add_bos_token": begins,
        "tokenizer.ggml.add_eos_token": False,
    }


def _templates(folder: Path) -> dict[str, Any]:
    try:
        named = chat_templates(folder)
    except UsageError:  # A folder without any may be trained, too.
        return {}
    metadata: dict[str, Any] = {
        f"tokenizer.chat_template.{name}": text for name, text in named.items() if name != DEFAULT
    }
    if metadata:
        metadata["tokenizer.chat_templates"] = [name for name in named if name != DEFAULT]
    if DEFAULT in named:
        metadata["tokenizer.chat_template"] = named[DEFAULT]
    return metadata


def _sentence_pieces(
    model: dict[str, Any], described: dict[str, Any], tokens: list[str]
) -> dict[str, Any]:
    """Return SentencePiece's scores: the rank of the first merge that makes a token, or below all where none does."""
    scores = [-math.inf] * len(tokens)
    ids = {token: index for index, token in enumerate(tokens)}
    for rank, merge in enumerate(model["merges"]):
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        made = ids[left + right]
        scores[made] = max(scores[made], -float(rank))
    least = -float(len(model["merges"]) + 1)
    prepends = "Prepend" in json.dumps(described.get("normalizer"))
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.scores": [least if score == -math.inf else score for score in scores],
        "tokenizer.ggml.add_space_prefix": prepends,
    }


def _problem(predicate: str) -> UsageError:
    return UsageError(
        f"The tokenizer {predicate}, so no exact GGUF file can be written. Export with --to hf."
    )
