"""Bodies and answers of the two endpoints that sample: `/v1/completions`, and `/inference/v1/generate`.

Both take token ids and return sampled ids with their logprobs. The second computes no text, and is there on servers of vLLM
0.33 or later that are started with --enable-scale-out or --tokens-only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

_TOKEN = re.compile(r"token_id:(\d+)")
_MOST_TOKENS = 1 << 31
_OUTSIDE = ("model", "cache_salt", "stream", "stream_options")
"""Settings that are no sampling parameters."""
_COMPLETIONS_ONLY = ("return_token_ids", "return_tokens_as_token_ids", "return_weight_versions")
"""Settings of `/v1/completions`; the other endpoint always returns these."""


@dataclass(frozen=True)
class WeightSpan:
    """Tokens of one completion that were sampled with one version of the weights."""

    name: str
    """The version's name, as given by `Server.name_weights`."""
    start: int
    """Its first token in the completion."""


@dataclass(frozen=True)
class Piece:
    """Tokens of one chunk of a stream."""

    token_ids: list[int]
    logprobs: list[float]
    top: list[list[tuple[int, float]]]
    """For each token, the most likely tokens at its position, in descending order."""
    finish_reason: str | None
    cached_tokens: int | None
    """Prompt tokens found in its cache, with --enable-prompt-tokens-details."""
    weights: list[WeightSpan] | None = None
    """The weights of all tokens of the completion, at its end; None: not given."""


@dataclass(frozen=True)
class Endpoint:
    """An endpoint that samples."""

    path: str
    body: Callable[[Mapping[str, Any]], dict[str, Any]]
    """Returns its request for the body of a completion."""
    logprobs: Callable[[Mapping[str, Any]], tuple[list[float], list[Mapping[str, Any] | list[Any]]]]
    """Returns the logprobs of a choice, and for each token a row of the most likely tokens."""
    likeliest: Callable[[Any], list[tuple[int, float]]]
    """Returns such a row as ids and logprobs."""


def completion_body(model: str, prompt: list[int], **options: Any) -> dict[str, Any]:
    """Return a completion request for token ids, explicit in all settings of a model's generation_config.json."""
    return {
        "model": model,
        "prompt": prompt,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "ignore_eos": True,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        **options,
    }


def read_piece(endpoint: Endpoint, answer: Mapping[str, Any]) -> Piece | None:
    """Return the tokens of an answer or of a stream's chunk; None if it has neither tokens nor counts.

    Raises `AttributeError`, `KeyError`, `TypeError` or `ValueError` for other fields than vLLM's.
    """
    details = (answer.get("usage") or {}).get("prompt_tokens_details") or {}
    cached = details.get("cached_tokens")
    choices = answer.get("choices") or []
    if not choices:
        return None if cached is None else Piece([], [], [], None, cached)
    choice = choices[0]
    ids = choice.get("token_ids") or []
    if not all(type(token) is int and 0 <= token < _MOST_TOKENS for token in ids):
        raise TypeError("token_ids")
    logprobs, rows = endpoint.logprobs(choice.get("logprobs") or {})
    if not all(type(logprob) in (int, float) and isfinite(logprob) for logprob in logprobs):
        raise TypeError("logprobs")
    top = [endpoint.likeliest(row) for row in rows]
    spans = choice.get("weight_versions")
    weights = None if spans is None else [_span(span) for span in spans]
    return Piece(ids, logprobs, top, choice.get("finish_reason"), cached, weights)


def _span(span: Mapping[str, Any]) -> WeightSpan:
    return WeightSpan(str(span["version"]), int(span["start"]))


def _descending(pairs: list[tuple[int, float]]) -> list[tuple[int, float]]:
    return sorted(pairs, key=lambda pair: -pair[1])


# -- /v1/completions ----------------------------------------------------------------------------


def _completion_logprobs(logprobs: Mapping[str, Any]) -> tuple[list[float], list[Any]]:
    rows = logprobs.get("top_logprobs") or []
    return logprobs.get("token_logprobs") or [], [row or {} for row in rows]


def _named_likeliest(row: Mapping[str, float]) -> list[tuple[int, float]]:
    pairs = [(_TOKEN.fullmatch(name), value) for name, value in row.items()]
    return _descending([(int(match[1]), value) for match, value in pairs if match is not None])


# -- /inference/v1/generate ---------------------------------------------------------------------


def _generate_body(completion: Mapping[str, Any]) -> dict[str, Any]:
    outside = {name: completion[name] for name in _OUTSIDE if name in completion}
    others = {*_OUTSIDE, *_COMPLETIONS_ONLY, "prompt"}
    sampling = {name: value for name, value in completion.items() if name not in others}
    # No text is asked for, so none is computed.
    sampling["detokenize"] = False
    return {**outside, "token_ids": completion["prompt"], "sampling_params": sampling}


def _generate_logprobs(logprobs: Mapping[str, Any]) -> tuple[list[float], list[Any]]:
    content = logprobs.get("content") or []
    return [token["logprob"] for token in content], [
        token.get("top_logprobs") or [] for token in content
    ]


def _listed_likeliest(row: list[Mapping[str, Any]]) -> list[tuple[int, float]]:
    return _descending([(int(entry["token_id"]), entry["logprob"]) for entry in row])


COMPLETIONS = Endpoint("/v1/completions", dict, _completion_logprobs, _named_likeliest)
GENERATE = Endpoint("/inference/v1/generate", _generate_body, _generate_logprobs, _listed_likeliest)
