"""A policy's first turn and first training pass, before a rollout waits for them: they compile, record and allocate."""

from __future__ import annotations

import threading

import numpy as np

from hud.engine.decoder import Decoder
from hud.engine.policy import Policy
from hud.engine.sample.request import Turn
from hud.engine.trainer import Trainer
from hud.learning.datums import Datum
from hud.trace import SamplingParams

PROMPT = 4
"""Prompt tokens of the turn and of the datums."""
SAMPLED = 4
"""Sampled tokens: the first one of a turn comes from another pass than the others."""


def sample_first(policy: Policy) -> None:
    """Sample a turn of a few tokens and drop it. Blocks, so call it off the event loop; raises what the turn ends with."""
    ended = threading.Event()
    turn = Turn(
        prompt=[_text_token(policy.decoder)] * PROMPT,
        params=SamplingParams(max_tokens=SAMPLED, seed=0),
        stop_ids=frozenset(),
    )
    # A listener may be called before `submit` returns, and after every token.
    request = policy.submit(turn, ended.set)
    while request.outcome is None:
        ended.wait()
        ended.clear()
    if isinstance(request.outcome, BaseException):
        raise request.outcome


def train_first(trainer: Trainer, decoder: Decoder) -> None:
    """Compute the gradient of a lone datum, and of two with one prompt, and drop them. The weights stay as they are."""
    token = _text_token(decoder)
    for datums in ([_datum(token, 1)], [_datum(token, 1), _datum(token, 2)]):
        trainer.forward_backward(datums)
    trainer.zero_grad()


def _datum(token: int, more: int) -> Datum:
    length = PROMPT + more
    sampled = np.array([0.0] * PROMPT + [1.0] * more, np.float32)
    zeros, ones = np.zeros(length, np.float32), np.ones(length, np.float32)
    return Datum(
        tokens=np.full(length, token, np.int64),
        mask=sampled,
        logprobs=zeros,
        advantages=sampled,
        weights=sampled,
        temperatures=ones,
        prompt_length=PROMPT,
    )


def _text_token(decoder: Decoder) -> int:
    """Return an id that stands for text, not for a picture."""
    return next(
        token for token in range(decoder.config.vocab_size) if token not in decoder.picture_tokens
    )
