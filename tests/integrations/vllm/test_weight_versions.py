"""The weights that servers name for their tokens, against those that were loaded there."""

import asyncio
import contextlib

import numpy as np
import pytest
from tests.engine.tiny_policy import tiny_folder
from tests.engine.waiting import until
from tests.integrations.vllm.test_vllm_sampling import LONG, PROMPT, trained_logprobs
from tests.integrations.vllm.vllm_policy import change, vllm_policy
from tests.integrations.vllm.vllm_stand_in import StandIn
from tests.integrations.vllm.vllm_transfer import SendingHalf

from hud.engine.lora import LoraConfig
from hud.engine.sample.request import Turn
from hud.errors import InfrastructureFault


@pytest.fixture
def servers():
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(StandIn(tiny_folder())) for _ in range(2)]


@pytest.fixture
def policy(servers, tmp_path):
    """A policy whose health checks come too late to see that a server was started again."""
    made = vllm_policy(servers, tmp_path, look=60.0)
    yield made
    made.close()


def restart(server):
    """Start a server again between two health checks: it has the weights of its folder."""
    server.kill()
    server.start()


async def sampled(policy, count=4):
    """Sample turns at once, on every server."""
    turns = [policy.sample([number, *PROMPT], LONG) for number in range(count)]
    return await asyncio.gather(*turns)


def check(policy, drawn):
    for number, turn in enumerate(drawn):
        expected = trained_logprobs(policy, [number, *PROMPT], turn)
        np.testing.assert_allclose(turn.logprobs, expected, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"connect": SendingHalf}], ids=["folder", "transfer"])
async def test_weights_are_named_and_their_names_asked_for(servers, tmp_path, options):
    policy = await asyncio.to_thread(vllm_policy, servers, tmp_path, **options)
    assert [server.receiving.version for server in servers] == ["base", "base"]
    await asyncio.to_thread(change, policy, "one")
    assert [server.receiving.version for server in servers] == ["one", "one"]
    assert {turn.version for turn in await sampled(policy)} == {"one"}
    assert all(one.return_weight_versions for server in servers for one in server.requests)
    await asyncio.to_thread(policy.close)


async def test_a_server_started_again_between_two_checks_adds_no_token(policy, servers, caplog):
    await asyncio.to_thread(change, policy, "one")
    restart(servers[0])
    drawn = await sampled(policy)
    assert servers[0].requests, "it was never asked"
    assert {(turn.version, len(turn.token_ids)) for turn in drawn} == {("one", 40)}
    check(policy, drawn)
    said = f"The vLLM server {servers[0].url} sampled with the weights 'default', and 'one' had been loaded there."
    assert said in caplog.text


@pytest.mark.slow
async def test_it_samples_again_once_it_has_the_weights(servers, tmp_path):
    policy = await asyncio.to_thread(vllm_policy, servers[:1], tmp_path)
    await asyncio.to_thread(change, policy, "one")
    servers[0].receiving.version = "two"  # As where another trainer loads weights there.
    drawn = await sampled(policy)
    assert {turn.version for turn in drawn} == {"one"}
    check(policy, drawn)
    assert servers[0].calls.count("collective_rpc") == 3
    await asyncio.to_thread(policy.close)


async def test_where_weights_took_over_is_what_the_server_says(policy, servers):
    for server in servers:
        server.hold_at(15)
    turn = asyncio.create_task(policy.sample(PROMPT, LONG))
    await until(lambda: any(server.reached.is_set() for server in servers))
    await until(lambda: sum(len(one.token_ids) for one in policy._samplers._requests) == 15)
    await asyncio.to_thread(change, policy, "one", in_flight=True)
    (sequence,) = [one for server in servers for one in server.sequences]
    sequence.weights[14] = "one"
    for server in servers:
        server.hold_at(None)
    drawn = await turn
    assert (drawn.version, drawn.swaps) == (None, [(14, "one")])


async def test_tokens_that_are_in_use_already_are_not_replaced(policy, servers):
    for server in servers:
        server.receiving.version = "other"
    turn = Turn(prompt=PROMPT, params=LONG, stop_ids=frozenset(), followed=True)
    request = policy.turn_sampler.submit(turn, lambda: None)
    await until(lambda: request.outcome is not None)
    assert isinstance(request.outcome, InfrastructureFault)
    assert "with other weights" in str(request.outcome)


@pytest.mark.parametrize("options", [{}, {"lora": LoraConfig(rank=4)}], ids=["old", "adapter"])
async def test_older_servers_and_adapters_are_not_asked(tmp_path, options):
    version = "0.33.0" if options else "0.32.0"
    with StandIn(tiny_folder(), version=version) as server:
        policy = await asyncio.to_thread(vllm_policy, [server], tmp_path, **options)
        await asyncio.to_thread(change, policy, "one")
        drawn = await sampled(policy, 2)
        assert {turn.version for turn in drawn} == {"one"}
        check(policy, drawn)
        assert not any(one.return_weight_versions for one in server.requests)
        await asyncio.to_thread(policy.close)
