"""The tokenizer of a GGUF file as the files of a Hugging Face folder: tokenizer.json, its settings and the chat templates."""

from __future__ import annotations

import json
from enum import IntEnum
from pathlib import Path
from typing import Any

from hud.engine.chat.tokenizer_settings import DEFAULT, TEMPLATE_FOLDER
from hud_integrations.gguf.model_file import GgufFile
from hud_integrations.gguf.pre_tokenizers import (
    IGNORING_MERGES,
    NORMALIZED,
    PRE_TOKENIZERS,
    split_steps,
)

_SPECIAL = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
"""Special tokens of tokenizer_config.json, and their names in GGUF."""
_SPACE = "\u2581"


class Kind(IntEnum):
    """Kinds of tokens, as GGUF numbers them."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def write_tokenizer(file: GgufFile, folder: Path, *, context: int) -> None:
    """Write the tokenizer's files to a folder. Raises `UsageError` for a tokenizer that cannot be rebuilt exactly."""
    tokens = file.value("tokenizer.ggml.tokens") or []
    if not tokens:
        raise file.problem("holds no tokenizer (tokenizer.ggml.tokens)")
    if len(set(tokens)) < len(tokens):
        raise file.problem("lists a token twice")
    kinds = file.value("tokenizer.ggml.token_type") or [Kind.NORMAL] * len(tokens)
    if len(kinds) != len(tokens):
        raise file.problem("lists kinds for another number of tokens than it has")
    # Files are filled up with unused tokens to the rows of the embedding.
    while kinds and kinds[-1] == Kind.UNUSED:
        tokens, kinds = tokens[:-1], kinds[:-1]
    ids = {token: index for index, token in enumerate(tokens)}
    build = {"gpt2": _byte_level, "llama": _sentence_pieces}.get(
        file.value("tokenizer.ggml.model", "none")
    )
    if build is None:
        raise file.problem(
            f"has a tokenizer of the kind {file.value('tokenizer.ggml.model')!r}; gpt2 and llama are read"
        )
    special = _special_tokens(file, tokens)
    described = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _added(index, token, kind == Kind.CONTROL)
            for index, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
            if kind in (Kind.CONTROL, Kind.USER_DEFINED)
        ],
        **build(file, ids, special),
        "post_processor": _beginning(file, ids, special),
    }
    _write(folder / "tokenizer.json", described, indent=None)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **special,
        "add_bos_token": bool(file.value("tokenizer.ggml.add_bos_token", False)),
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
    }
    _write(folder / "tokenizer_config.json", settings, indent=2)
    _write_templates(file, folder)


def _special_tokens(file: GgufFile, tokens: list[str]) -> dict[str, str]:
    """Return bos, eos, unk and pad, where the file names them."""
    special = {}
    for name, key in _SPECIAL.items():
        index = file.value(f"tokenizer.ggml.{key}_token_id")
        if index is None:
            continue
        if not 0 <= index < len(tokens):
            raise file.problem(f"names token {index} as its {name} token, which it does not have")
        special[f"{name}_token"] = tokens[index]
    return special


def _added(index: int, token: str, special: bool) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": index, "content": token, **flags, "special": special}


def _byte_level(file: GgufFile, ids: dict[str, int], _: dict[str, str]) -> dict[str, Any]:
    """Return the steps and the model of byte-level BPE, whose way of splitting a text has a name in the file."""
    name = file.value("tokenizer.ggml.pre", "none")
    if name not in PRE_TOKENIZERS:
        raise file.problem(
            f"splits texts in the way {name!r} (tokenizer.ggml.pre), which is not supported"
        )
    merges = [merge.split(" ") for merge in file.value("tokenizer.ggml.merges") or []]
    odd = next((merge for merge in merges if len(merge) != 2 or "".join(merge) not in ids), None)
    if odd is not None:
        raise file.problem(f"has a merge that makes no token: {' '.join(odd)!r}")
    return {
        "normalizer": {"type": "NFC"} if name in NORMALIZED else None,
        "pre_tokenizer": split_steps(name),
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}
        | {"use_regex": True},
        "model": _bpe(ids, merges, ignore_merges=name in IGNORING_MERGES),
    }


def _sentence_pieces(
    file: GgufFile, ids: dict[str, int], special: dict[str, str]
) -> dict[str, Any]:
    """Return the steps and the model of SentencePiece's BPE, with merges in the order of the tokens' scores."""
    scores = file.value("tokenizer.ggml.scores") or []
    if len(scores) < len(ids):
        raise file.problem("lists fewer scores than tokens (tokenizer.ggml.scores)")
    normalizers: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    ]
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if file.value("tokenizer.ggml.add_space_prefix", True):
        normalizers.insert(0, {"type": "Prepend", "prepend": _SPACE})
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    fallback = {
        "unk_token": special.get("unk_token"),
        "fuse_unk": True,
        "byte_fallback": "<0x00>" in ids,
    }
    return {
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": _bpe(ids, merges_of_scores(ids, scores), **fallback),
    }


def merges_of_scores(ids: dict[str, int], scores: list[float]) -> list[list[str]]:
    """Return every pair of tokens that makes a token, the best score of the token first."""
    merges: list[tuple[float, int, int, list[str]]] = []
    for token, index in ids.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids:
                merges.append((-scores[index], ids[left], ids[right], [left, right]))
    return [merge for *_, merge in sorted(merges)]


def _bpe(ids: dict[str, int], merges: list[list[str]], **settings: Any) -> dict[str, Any]:
    plain = {
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
    }
    # Pairs as one text, which every release of tokenizers reads.
    joined = [" ".join(pair) for pair in merges]
    return {"type": "BPE", **plain, **settings, "vocab": ids, "merges": joined}


def _beginning(
    file: GgufFile, ids: dict[str, int], special: dict[str, str]
) -> dict[str, Any] | None:
    """Return the step that puts the bos token before a text, where the file asks for it."""
    added = file.value(
        "tokenizer.ggml.add_bos_token", file.value("tokenizer.ggml.model") == "llama"
    )
    token = special.get("bos_token")
    if not added or token is None:
        return None
    first, text, second = (
        {"SpecialToken": {"id": token, "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"Sequence": {"id": "B", "type_id": 1}},
    )
    return {
        "type": "TemplateProcessing",
        "single": [first, text],
        "pair": [first, text, second],
        "special_tokens": {token: {"id": token, "ids": [ids[token]], "tokens": [token]}},
    }


def _write_templates(file: GgufFile, folder: Path) -> None:
    """Write the chat templates; a file without any may be trained, as a folder without any."""
    names = file.value("tokenizer.chat_templates") or []
    templates = {name: file.value(f"tokenizer.chat_template.{name}") for name in names}
    templates[DEFAULT] = file.value("tokenizer.chat_template")
    for name, text in templates.items():
        if not isinstance(text, str) or not str(name).replace("_", "").isalnum():
            continue
        path = folder / "chat_template.jinja"
        if name != DEFAULT:
            path = folder / TEMPLATE_FOLDER / f"{name}.jinja"
            path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _write(path: Path, values: dict[str, Any], *, indent: int | None) -> None:
    path.write_text(json.dumps(values, indent=indent, ensure_ascii=False) + "\n", encoding="utf-8")
