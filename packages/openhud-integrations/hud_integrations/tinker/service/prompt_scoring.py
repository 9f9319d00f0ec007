"""Log-probabilities at the positions of a sampling request's prompt: the engine's call, and its answer as clients read it."""

from __future__ import annotations

import math
from dataclasses import replace

from hud.learning.datum_calls import Draws, PromptScores, ScoreRequest, Targets
from hud_integrations.tinker.service.wire.messages import Sampled
from hud_integrations.tinker.service.wire.requests import Sample


def score_request(body: Sample) -> ScoreRequest | None:
    """Return what a request asks of its prompt, under the weights that serve; None if it asks for nothing.

    Raises `UsageError` for ids that do not fit the prompt, and for a prompt with images.
    """
    draws = _draws(body)
    targeted = body.target_prompt_logprobs is not None
    if not (body.prompt_logprobs or body.topk_prompt_logprobs or draws or targeted):
        return None
    prompt, targets = body.prompt.ids, None
    if body.target_prompt_logprobs is not None:
        rows, tokens = body.target_prompt_logprobs.cells(len(prompt) - 1)
        targets = Targets(rows=rows, tokens=tokens)
    return ScoreRequest(
        checkpoint=None, prompt=prompt, top=body.topk_prompt_logprobs, draws=draws, targets=targets
    )


def with_scores(sampled: Sampled, body: Sample, scores: PromptScores) -> Sampled:
    """Return an answer with what was asked of the prompt; NaN stands where a position has no logprob."""
    first, width = 1, body.topk_prompt_logprobs
    if body.prompt_logprobs_last_n is not None:
        first = len(body.prompt.ids) - body.prompt_logprobs_last_n
    logprobs = [math.nan] * first + scores.logprobs[first - 1 :]
    top = scores.top and [[(0, math.nan)] * width] * first + scores.top[first - 1 :]
    targets = body.target_prompt_logprobs
    return replace(
        sampled,
        prompt_logprobs=logprobs if body.prompt_logprobs else None,
        prompt_top=top,
        prompt_drawn=scores.drawn,
        prompt_targets=None if targets is None else targets.tensor(scores.targets or []),
    )


def _draws(body: Sample) -> Draws | None:
    """Return the draws at each position of the prompt; their seed is none of the sequences'."""
    params = body.sampling_params
    if not body.prompt_alt_tokens_k:
        return None
    return Draws(
        count=body.prompt_alt_tokens_k,
        temperature=params.temperature,
        seed=params.seed_of(body.num_samples),
    )
