"""Sampling keeps its promises: exact ids, exact logprobs, whoever else is in the batch."""

import asyncio
import itertools

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.engine.random_decoder import random_decoder
from tests.engine.tiny_policy import TEXTS, TOOLS, tiny_policy

from hud.engine.policy import Policy
from hud.engine.sample import sampler
from hud.engine.sample.options import SamplerOptions
from hud.engine.sample.token_sampling import Uniforms
from hud.engine.tiny_model import create_tiny
from hud.errors import ContextOverflow, InfrastructureFault
from hud.trace import Continuation, SamplingParams
from hud_kernels.cpu import runner

WORDS = ["look at item 3", "the answer", "apples and more apples", "9 8 7", ""]


@pytest.fixture(scope="module")
def policy():
    made = tiny_policy(slots=8)
    yield made
    made.close()


async def converse(model, openings, seed, turns, max_tokens=12, temperature=1.0):
    """Play a conversation whose other side says `openings`; returns its completions."""
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": openings[0]},
    ]
    continuation, completions = None, []
    for turn in range(turns):
        params = SamplingParams(max_tokens=max_tokens, seed=seed + turn, temperature=temperature)
        completion = await model.complete(messages, TOOLS, params, continuation=continuation)
        completions.append(completion)
        messages += [
            {"role": "assistant", "content": completion.content},
            {"role": "tool", "content": openings[turn % len(openings)], "tool_call_id": "x"},
        ]
        sample = completion.sample
        ids = sample.prompt_token_ids + sample.output_token_ids
        continuation = Continuation(ids, len(messages) - 2)
    return completions


def forward_logprobs(policy, ids, temperature=1.0):
    length = torch.tensor([0, len(ids)])
    with torch.no_grad():
        hidden = policy.decoder.hidden_packed(torch.tensor(ids), torch.arange(len(ids)), length)
        return torch.log_softmax(policy.decoder.logits(hidden) / temperature, dim=-1)


@pytest.mark.slow
@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    conversations=st.lists(
        st.tuples(
            st.lists(st.sampled_from(WORDS), min_size=1, max_size=3),
            st.integers(0, 10**6),
            st.integers(1, 4),
        ),
        min_size=1,
        max_size=12,
    ),
    temperature=st.sampled_from([1.0, 0.7]),
)
def test_trained_ids_are_sampled_ids_and_a_forward_pass_gives_their_logprobs(
    policy, conversations, temperature
):
    model = policy.chat_model("tiny")

    async def play():
        return await asyncio.gather(
            *(
                converse(model, words, seed, turns, temperature=temperature)
                for words, seed, turns in conversations
            )
        )

    for completions in asyncio.run(play()):
        before = []
        for completion in completions:
            sample = completion.sample
            assert completion.extended
            assert sample.prompt_token_ids[: len(before)] == before
            before = sample.prompt_token_ids + sample.output_token_ids
            assert len(sample.output_logprobs) == len(sample.output_token_ids)
        logprobs = forward_logprobs(policy, before, temperature)
        for completion in completions:
            sample = completion.sample
            start = len(sample.prompt_token_ids)
            for offset, (token, logprob) in enumerate(
                zip(sample.output_token_ids, sample.output_logprobs, strict=True)
            ):
                assert abs(logprobs[start + offset - 1, token].item() - logprob) < 1e-4


@pytest.mark.slow
async def test_what_a_seeded_request_draws_does_not_depend_on_its_company(policy):
    model = policy.chat_model("tiny")
    alone = await converse(model, ["look at item 3"], seed=5, turns=2)
    crowd = await asyncio.gather(
        *(converse(model, ["look at item 3"], seed=seed, turns=2) for seed in (1, 5, 9, 100, 200))
    )
    assert [one.sample.output_token_ids for one in alone] == [
        one.sample.output_token_ids for one in crowd[1]
    ]


@pytest.mark.slow
async def test_a_later_turn_computes_only_its_new_tokens():
    policy = tiny_policy(slots=4)
    completions = await converse(policy.chat_model("tiny"), ["look at item 3"], seed=3, turns=6)
    for before, after in itertools.pairwise(completions):
        covered = len(before.sample.prompt_token_ids) + len(before.sample.output_token_ids)
        assert (
            after.usage.cached_tokens == covered - 1
        )  # The last token drawn was never run through.
    policy.close()


async def test_a_group_computes_its_prompt_once():
    policy = tiny_policy(slots=8)
    model = policy.chat_model("tiny")
    messages = [{"role": "user", "content": "apples " * 30}]
    params = [SamplingParams(max_tokens=3, seed=seed) for seed in range(8)]
    completions = await asyncio.gather(*(model.complete(messages, TOOLS, one) for one in params))
    prompt = completions[0].usage.prompt_tokens
    assert sorted(one.usage.cached_tokens for one in completions) == [0] + [prompt - 1] * 7
    policy.close()


@pytest.mark.slow
async def test_more_requests_than_slots_all_end():
    policy = tiny_policy(slots=2)
    model = policy.chat_model("tiny")
    completions = await asyncio.gather(
        *(converse(model, [word], seed=3, turns=2) for word in WORDS * 2)
    )
    assert len(completions) == 10
    policy.close()


@pytest.mark.slow
async def test_new_weights_see_no_old_keys():
    policy = tiny_policy(slots=2)
    model = policy.chat_model("tiny")
    messages = [{"role": "user", "content": "look at item 3 " * 4}]
    params = SamplingParams(max_tokens=6, seed=1)
    await model.complete(messages, TOOLS, params)
    with policy.exclusive(), torch.no_grad():
        for parameter in policy.decoder.parameters():
            parameter.mul_(1.5)
    policy.checkpoint = "b" * 32
    after = await model.complete(messages, TOOLS, params)
    assert after.usage.cached_tokens == 0
    assert after.sample.checkpoint == "b" * 32
    ids = after.sample.prompt_token_ids + after.sample.output_token_ids
    logprobs = forward_logprobs(policy, ids)
    start = len(after.sample.prompt_token_ids)
    for offset, token in enumerate(after.sample.output_token_ids):
        assert (
            abs(logprobs[start + offset - 1, token].item() - after.sample.output_logprobs[offset])
            < 1e-4
        )
    policy.close()


@pytest.mark.slow
async def test_a_cancelled_request_frees_its_slot():
    policy = tiny_policy(slots=1)
    model = policy.chat_model("tiny")
    messages = [{"role": "user", "content": "go"}]
    long = asyncio.create_task(
        model.complete(messages, [], SamplingParams(max_tokens=400, seed=1, stop=("\x00",)))
    )
    await asyncio.sleep(0.05)
    long.cancel()
    async with asyncio.timeout(20):
        await model.complete(messages, [], SamplingParams(max_tokens=2, seed=2))
    policy.close()


async def test_greedy_is_greedy_and_truncation_gives_nothing_to_train_on(policy):
    model = policy.chat_model("tiny")
    messages = [{"role": "user", "content": "look"}]
    greedy = await model.complete(messages, [], SamplingParams(max_tokens=4, temperature=0.0))
    ids = greedy.sample.prompt_token_ids
    for token in greedy.sample.output_token_ids:
        assert forward_logprobs(policy, ids)[-1].argmax().item() == token
        ids = [*ids, token]
    one = await model.complete(messages, [], SamplingParams(max_tokens=4, top_k=1, seed=3))
    assert one.sample is None
    assert one.content == greedy.content


@pytest.mark.slow
async def test_a_prompt_that_fills_the_context_is_refused_and_one_near_its_end_is_cut(policy):
    model = policy.chat_model("tiny")
    with pytest.raises(ContextOverflow, match="context holds 512"):
        await model.complete([{"role": "user", "content": "9 " * 600}], [], SamplingParams())
    near = await model.complete(
        [{"role": "user", "content": "9 " * 240}], [], SamplingParams(max_tokens=10**6, seed=0)
    )
    assert near.usage.prompt_tokens + near.usage.completion_tokens <= 512


async def test_a_closed_sampler_tells_who_waits():
    policy = tiny_policy(slots=1)
    model = policy.chat_model("tiny")
    messages = [{"role": "user", "content": "go"}]
    params = SamplingParams(max_tokens=450, seed=1, stop=("\x00",))
    waiting = asyncio.gather(
        *(model.complete(messages, [], params) for _ in range(3)), return_exceptions=True
    )
    await asyncio.sleep(0.05)
    await asyncio.to_thread(policy.close)
    assert any(isinstance(outcome, InfrastructureFault) for outcome in await waiting)


async def test_a_failed_sampler_gives_its_reason_to_later_requests_too():
    policy = tiny_policy(slots=1)
    with torch.no_grad():
        for weight in policy.decoder.parameters():
            weight.fill_(float("nan"))
    model = policy.chat_model("tiny")
    messages = [{"role": "user", "content": "go"}]
    for _ in range(2):
        with pytest.raises(InfrastructureFault, match="logits are not finite"):
            await model.complete(messages, [], SamplingParams(max_tokens=4, seed=1))
    policy.close()


@pytest.mark.slow
async def test_tokens_drawn_some_at_once_are_those_that_are_drawn_one_by_one(tmp_path, monkeypatch):
    create_tiny(tmp_path, TEXTS, vocab_size=400, hidden=32, layers=2, heads=2, max_context=512)
    monkeypatch.setattr(runner, "AT_ONCE_SECONDS", 1000.0)
    found = {}
    for at_once in (1, runner.AT_ONCE):
        monkeypatch.setattr(runner, "AT_ONCE", at_once)
        policy = Policy.load(tmp_path, sampling=SamplerOptions(slots=4))
        prompts = [list(range(9 + number)) for number in range(7)]  # More than there are slots.
        drawn = [
            policy.sample(
                prompt,
                SamplingParams(max_tokens=30 + 3 * number, seed=number, temperature=number % 3 / 2),
            )
            for number, prompt in enumerate(prompts)
        ]
        found[at_once] = await asyncio.gather(*drawn)
        # A turn that follows one finds what that left in the cache.
        longer = prompts[0] + found[at_once][0].token_ids + [7]
        after = await policy.sample(longer, SamplingParams(max_tokens=5, seed=1))
        assert after.cached_tokens == len(longer) - 2
        found[at_once].append(after)
        policy.close()
    for one, other in zip(*found.values(), strict=True):
        assert (one.token_ids, one.finish_reason) == (other.token_ids, other.finish_reason)
        # What is compiled into one loop is rounded in another order.
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
    assert {one.finish_reason for one in found[1]} == {"length", "stop"}


async def test_a_turn_without_a_limit_goes_on_to_the_end_of_the_context():
    decoder = random_decoder(max_position_embeddings=1500, num_hidden_layers=1)
    own = sampler.Sampler(decoder, slots=1)
    try:
        drawn = await own.sample([1, 2, 3], SamplingParams(seed=0), frozenset())
        assert (len(drawn.token_ids), drawn.finish_reason) == (1497, "length")
    finally:
        own.close()


def test_numbers_that_are_looked_at_ahead_come_in_the_same_order():
    plain, ahead = Uniforms(7), Uniforms(7)
    wanted = [plain.next() for _ in range(200)]
    found = [ahead.next()]
    while len(found) < 200:
        coming = ahead.coming(min(8, 200 - len(found)))
        taken = 1 + len(found) % len(coming)
        ahead.skip(taken)
        found.extend(coming[:taken])
    assert found == wanted
