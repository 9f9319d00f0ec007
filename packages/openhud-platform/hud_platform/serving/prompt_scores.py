"""Logprobs of a prompt's tokens under a policy, in one forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hud.engine.sample.request import room_after
from hud.errors import UsageError
from hud.learning.datum_calls import Draws, PromptScores, ScoreRequest, Targets
from hud.trace.chat_model import LEAST_TEMPERATURE
from hud_platform.models.records import ModelRecord

if TYPE_CHECKING:
    from hud.engine.models.reference_decoder import ReferenceDecoder
    from hud.engine.policy import Policy
    from hud_platform.models.loaded_policies import Policies

ROWS = 256
"""Positions whose logits are computed at once."""


def score_prompt(policies: Policies, model: ModelRecord, body: ScoreRequest) -> PromptScores:
    """Return the logprobs of a prompt's tokens but the first, at temperature 1. Blocks; raises `UsageError`."""
    if model.config.backend is not None:
        raise UsageError(
            f"{model.slug!r} is on the training backend {model.config.backend.name!r}, which scores no prompts; leave their "
            "logprobs out."
        )
    policy = policies.policy(model, body.checkpoint)
    config = policy.decoder.config
    room_after(body.prompt, config.vocab_size, config.max_position_embeddings + 1, "its context")
    if len(body.prompt) < 2:
        raise UsageError("A prompt of one token has no logprobs: its first token has no context.")
    if body.top > config.vocab_size:
        raise UsageError(f"The model has {config.vocab_size} tokens, fewer than {body.top}.")
    if body.targets is not None and max(body.targets.tokens) >= config.vocab_size:
        raise UsageError(
            f"The model has {config.vocab_size} tokens, none of which is {max(body.targets.tokens)}."
        )
    serving = policies.loaded(model.id)
    fixed: AbstractContextManager[object] = nullcontext()
    if serving is not None and serving.policy is policy:
        fixed = serving.lock  # A step must not change the weights during the pass.
    with fixed, torch.no_grad():
        return _scores(policy, body)


def _scores(policy: Policy, body: ScoreRequest) -> PromptScores:
    device = next(policy.decoder.parameters()).device
    ids = torch.tensor(body.prompt, device=device)
    scores = PromptScores(
        logprobs=[],
        top=[] if body.top else None,
        drawn=[] if body.draws else None,
        targets=[] if body.targets else None,
    )
    generator = _generator(device, body.draws)
    targets = Targets(rows=[], tokens=[]) if body.targets is None else body.targets
    cells = torch.tensor([targets.rows, targets.tokens], dtype=torch.long, device=device)
    for start, rows in _rows(policy.decoder, ids):
        actual = ids[1 + start : 1 + start + len(rows), None]
        scores.logprobs += rows.gather(-1, actual).squeeze(-1).tolist()
        if scores.top is not None:
            values, tokens = rows.topk(body.top, dim=-1)
            scores.top += _pairs(tokens, values)
        if scores.drawn is not None and body.draws is not None:
            tokens = _draw(rows, body.draws, generator)
            scores.drawn += _pairs(tokens, rows.gather(-1, tokens))
        if scores.targets is not None:
            bounds = torch.tensor([start, start + len(rows)], device=device)
            first, last = torch.searchsorted(cells[0], bounds).tolist()
            here = cells[:, first:last]
            scores.targets += rows[here[0] - start, here[1]].tolist()
    return scores


def _rows(decoder: ReferenceDecoder, ids: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Yield the (T, V) logprobs of T positions after the first at a time, with the number of those before them."""
    count = len(ids) - 1
    predicts = torch.arange(count, device=ids.device)
    bounds = torch.tensor([0, count], device=ids.device)
    hidden = decoder.hidden_packed(ids[:-1], predicts, bounds, None, predicts)
    for start in range(0, count, ROWS):
        yield start, decoder.logits(hidden[start : start + ROWS]).float().log_softmax(-1)


def _generator(device: torch.device, draws: Draws | None) -> torch.Generator:
    generator = torch.Generator(device)
    if draws is not None and draws.seed is not None:
        generator.manual_seed(draws.seed)
    else:
        generator.seed()
    return generator


def _draw(rows: Tensor, draws: Draws, generator: torch.Generator) -> Tensor:
    """Return (T, count) token ids drawn with replacement from (T, V) logprobs."""
    if draws.temperature < LEAST_TEMPERATURE:
        return rows.argmax(-1, keepdim=True).expand(-1, draws.count)
    chances = (rows / draws.temperature).softmax(-1)
    return torch.multinomial(chances, draws.count, replacement=True, generator=generator)


def _pairs(tokens: Tensor, values: Tensor) -> list[list[tuple[int, float]]]:
    rows = zip(tokens.tolist(), values.tolist(), strict=True)
    return [list(zip(row, logprobs, strict=True)) for row, logprobs in rows]
