"""Turns that the real vLLM samples: its ids, logprobs of the trainer, its context, and its requests that end early."""

import asyncio

import numpy as np
import pytest
from tests.engine.waiting import until
from tests.integrations.vllm.real_vllm import ABSENT, CONTEXT, PYTHON, real_policy
from tests.integrations.vllm.test_vllm_sampling import trained_logprobs

from hud.errors import ContextOverflow
from hud.inference.context_overflow import is_overflow
from hud.trace import SamplingParams

pytestmark = [
    pytest.mark.skipif(PYTHON is None, reason=ABSENT),
    pytest.mark.timeout(1200),  # The first test of a file may wait for the servers.
]

LARGEST_GAP = 1e-3
"""Nats between logprobs of vLLM and of the trainer, for every token, both in float32."""
TEXT = "The capital of France is Paris. The capital of Italy is"


@pytest.fixture(scope="module")
def policy(processes, untied_folder, tmp_path_factory):
    (server, _) = processes
    server.wait()
    policy = real_policy([server], tmp_path_factory.mktemp("sampling"), untied_folder)
    yield policy
    policy.close()


def request_of(server, prompt, **options):
    """Return a completion as any client of vLLM asks for it."""
    named = {"model": server.model, "prompt": prompt, "logprobs": 1}
    return {**named, "return_token_ids": True, "ignore_eos": True, **options}


async def test_ids_and_logprobs_are_those_that_the_server_sampled(policy, server):
    prompt = policy.chat.encode(TEXT)
    params = SamplingParams(max_tokens=24, temperature=0.8, top_p=0.9, seed=7)
    turn = await policy.sample(prompt, params)
    options = {"max_tokens": 24, "temperature": 0.8, "top_p": 0.9, "top_k": 0, "seed": 7}
    status, answer = await asyncio.to_thread(
        server.ask, "/v1/completions", request_of(server, prompt, **options)
    )
    assert status == 200, answer
    (choice,) = answer["choices"]
    assert turn.token_ids == choice["token_ids"]
    np.testing.assert_allclose(turn.logprobs, choice["logprobs"]["token_logprobs"], atol=1e-4)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
async def test_logprobs_are_those_of_the_trainer(policy, temperature):
    prompts = [policy.chat.encode(f"{TEXT} {number}") for number in range(4)]
    params = SamplingParams(max_tokens=32, temperature=temperature)
    turns = await asyncio.gather(*(policy.sample(prompt, params) for prompt in prompts))
    for prompt, turn in zip(prompts, turns, strict=True):
        assert len(turn.token_ids) == len(turn.logprobs) == 32
        expected = await asyncio.to_thread(trained_logprobs, policy, prompt, turn, temperature)
        gaps = np.abs(np.array(turn.logprobs) - expected)
        print(f"gap at temperature {temperature}: {gaps.mean():.2g}, {gaps.max():.2g} at most")
        assert gaps.max() < LARGEST_GAP


async def test_an_end_token_ends_a_turn_and_belongs_to_it(policy, monkeypatch):
    prompt, greedy = policy.chat.encode(TEXT), SamplingParams(max_tokens=12, temperature=0)
    free = await policy.sample(prompt, greedy)
    end = free.token_ids[3]
    monkeypatch.setattr(policy.chat, "stop_ids", frozenset({end}))
    ended = await policy.sample(prompt, greedy)
    expected = free.token_ids[: free.token_ids.index(end) + 1]
    assert (ended.finish_reason, ended.token_ids) == ("stop", expected)


async def test_a_turn_that_fills_the_servers_context_ends_by_its_length(policy):
    prompt = policy.chat.encode("word " * CONTEXT)[: CONTEXT - 6]
    turn = await policy.sample(prompt, SamplingParams(max_tokens=100))
    assert (turn.finish_reason, len(turn.token_ids)) == ("length", 6)


async def test_a_prompt_that_overflows_the_servers_context_is_named(policy):
    prompt = [5] * CONTEXT
    with pytest.raises(ContextOverflow, match=f"{CONTEXT} tokens; the model's context holds"):
        await policy.sample(prompt, SamplingParams(max_tokens=4))


async def test_the_servers_own_sentence_is_known_as_overflow(server):
    """Its other clients get it: agents that play with `--model http://HOST/v1`."""
    messages = [{"role": "user", "content": "word " * (CONTEXT + 50)}]
    bodies = {
        "/v1/completions": request_of(server, [5] * (CONTEXT + 50), max_tokens=4),
        "/v1/chat/completions": {"model": server.model, "messages": messages, "max_tokens": 4},
    }
    for path, body in bodies.items():
        status, answer = await asyncio.to_thread(server.ask, path, body)
        assert status == 400, (path, answer)
        error = answer["error"]
        assert is_overflow(error.get("code"), error["message"]), error["message"]


async def test_a_turn_that_nobody_awaits_is_aborted_on_the_server(policy, server):
    prompt = policy.chat.encode(TEXT)
    turn = asyncio.create_task(policy.sample(prompt, SamplingParams(max_tokens=900)))
    await until(lambda: any(len(one.token_ids) > 3 for one in policy._samplers._requests))
    assert await asyncio.to_thread(server.running) == 1
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    for _ in range(100):
        if not await asyncio.to_thread(server.running):
            break
        await asyncio.sleep(0.1)
    tokens = await asyncio.to_thread(server.generated)
    await asyncio.sleep(1.0)
    assert await asyncio.to_thread(server.running) == 0
    assert await asyncio.to_thread(server.generated) == tokens
    assert policy.turns == 0
