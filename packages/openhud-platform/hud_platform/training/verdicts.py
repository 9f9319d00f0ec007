"""Reward models: the reward of a run as a scalar head on a policy's last hidden state.

A question about the conversation ends with the generation prompt of an answer, GOOD or BAD. The head is the difference of two rows of
the output layer, those of the first tokens in which the two answers differ, so that the softmax's normalizer cancels:

    r = (w_good - w_bad) · h = lp(good) - lp(bad)

h is the hidden state there. The rows start from what the policy knows of the two words (a generative verifier, arXiv 2408.15240); an
adapter leaves them fixed and learns h. Training and rating compute the same two logprobs, over one shared prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hud.engine.cpu_threads import on_all_cores
from hud.engine.learn.scoring import logprobs_under
from hud.errors import UsageError
from hud.graders.quoted_json import quoted_json
from hud.inference.dialects.conversation_parts import text_in
from hud.learning.datums import Datum, datums_of
from hud.learning.training_calls import RateRequest, Rates
from hud.learning.wire_types import TrajectoryPayload, TrajectorySample
from hud.trace import ChatMessage
from hud_platform.models.records import ModelRecord
from hud_platform.training.supervised_rendering import render_conversation

if TYPE_CHECKING:
    from hud.engine.chat.chat_format import ChatFormat
    from hud_platform.models.loaded_policies import Policies

GOOD, BAD = "good", "bad"
QUESTION = "Is the work of the assistant good or bad?"


def check_rates(model: ModelRecord) -> None:
    """Raise `UsageError` for a model that is no reward model of this platform."""
    if not model.config.reward_model:
        raise UsageError(
            f"{model.slug!r} is no reward model. Make one of it, and train that: hud models fork {model.slug} --name NAME --reward-model"
        )
    if model.config.backend is not None or model.config.provider is not None:
        raise UsageError(
            f"The weights of {model.slug!r} are not on this platform, so it rates no runs."
        )


def verdicts(form: ChatFormat, messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Return the two verdicts on a conversation as samples of one token, with the weights 1 and -1: their weighted logprob is r.

    Raises `UsageError` for a chat template that shows neither.
    """
    document = quoted_json({"conversation": [_shown(message) for message in messages]})
    question = {"role": "user", "content": f"{document}\n{QUESTION}"}
    good, bad = (
        render_conversation(form, [question, {"role": "assistant", "content": word}], ())[0]
        for word in (GOOD, BAD)
    )
    pairs = zip(good["output_token_ids"], bad["output_token_ids"], strict=False)
    place = next((place for place, pair in enumerate(pairs) if pair[0] != pair[1]), None)
    if place is None:
        raise UsageError("The chat template shows no text of an assistant, so it has no verdicts.")
    prompt = [*good["prompt_token_ids"], *good["output_token_ids"][:place]]
    return [
        {
            "prompt_token_ids": prompt,
            "output_token_ids": [side["output_token_ids"][place]],
            "weights": [weight],
        }
        for side, weight in ((good, 1.0), (bad, -1.0))
    ]


def rate(policies: Policies, model: ModelRecord, body: RateRequest) -> Rates:
    """Return the rewards of conversations under a model's head. Blocks; raises `UsageError` beyond its context."""
    check_rates(model)
    policy = policies.policy(model, None)
    shape = policy.decoder.config
    datums: list[Datum] = []
    for place, conversation in enumerate(body.conversations):
        samples = verdicts(policy.chat, conversation.messages)
        payload = TrajectoryPayload(
            samples=[TrajectorySample.model_validate(sample) for sample in samples], reward=0.0
        )
        datums += datums_of(
            payload,
            traj_idx=place,
            vocab_size=shape.vocab_size,
            max_context=shape.max_position_embeddings,
            supervised=True,
        )
    with policies.fixed(model.id):
        rows = on_all_cores(lambda: logprobs_under(policy.decoder, datums))
    rewards = [0.0] * len(body.conversations)
    for datum, row in zip(datums, rows, strict=True):
        rewards[datum.traj_idx] += float((datum.weights * row).sum(dtype="float64"))
    return Rates(rewards=rewards)


def _shown(message: ChatMessage) -> dict[str, Any]:
    """Return a message with its text, without pictures and what only training reads."""
    shown = {"role": message["role"], "content": text_in(message.get("content"))}
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return {**shown, "calls": calls} if calls else shown
