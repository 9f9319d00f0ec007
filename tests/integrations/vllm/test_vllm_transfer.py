"""Weights that reach vLLM servers as tensors: the four calls in their order, to all servers at once."""

import asyncio
import contextlib

import numpy as np
import pytest
from tests.engine.tiny_policy import tiny_folder
from tests.engine.waiting import until
from tests.integrations.vllm.test_vllm_sampling import LONG, PROMPT, trained_logprobs
from tests.integrations.vllm.vllm_policy import change, vllm_policy
from tests.integrations.vllm.vllm_requests import Refused
from tests.integrations.vllm.vllm_stand_in import StandIn
from tests.integrations.vllm.vllm_transfer import ReceivingHalf, SendingHalf

from hud.errors import UsageError
from hud_integrations.vllm.weight_transfer import nccl_engine

FIRST = ["pause", "get_world_size", "init_weight_transfer_engine"]
SENT = ["start_weight_update", "update_weights", "finish_weight_update"]
EACH = [*SENT, "update_weight_version", "resume"]
JOIN, LEAVE = "init_weight_transfer_engine", "shutdown_weight_transfer_engine"
AGAIN = ["pause", "get_world_size", *EACH]


@pytest.fixture
def servers():
    SendingHalf.made.clear()
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(StandIn(tiny_folder(), gpus=gpus)) for gpus in (1, 2)]


@pytest.fixture
def policy(servers, tmp_path):
    made = vllm_policy(servers, tmp_path, connect=SendingHalf)
    yield made
    made.close()


def check(policy, drawn):
    expected = trained_logprobs(policy, PROMPT, drawn)
    np.testing.assert_allclose(drawn.logprobs, expected, atol=1e-4)


async def test_the_group_is_joined_once_and_every_update_is_three_calls(policy, servers):
    await asyncio.to_thread(change, policy, "one")
    await asyncio.to_thread(change, policy, "two")
    for server in servers:
        assert server.calls == FIRST + EACH + AGAIN * 2
        assert server.receiving.version == "two"
    drawn = await policy.sample(PROMPT, LONG)
    assert drawn.version == "two"
    check(policy, drawn)


def test_every_gpu_of_every_server_has_a_rank_of_its_own(policy, servers):
    (half,) = SendingHalf.made
    assert half.client.world_size == 4
    assert half.ranks == [1, 2]  # The first of each: 1, and 2 with 3.
    assert [server.receiving.info.world_size for server in servers] == [4, 4]


def test_no_file_is_written(policy, tmp_path):
    change(policy, "one")
    assert not (tmp_path / "published").exists()


async def test_a_turn_goes_on_with_tensors_that_came_under_it(policy, servers):
    for server in servers:
        server.hold_at(15)
    turn = asyncio.create_task(policy.sample(PROMPT, LONG))
    await until(lambda: any(server.reached.is_set() for server in servers))
    await until(lambda: sum(len(one.token_ids) for one in policy._samplers._requests) == 15)
    await asyncio.to_thread(change, policy, "one", in_flight=True)
    for server in servers:
        server.hold_at(None)
    drawn = await turn
    assert drawn.swaps == [(15, "one")]
    expected = trained_logprobs(policy, PROMPT, drawn)
    np.testing.assert_allclose(drawn.logprobs[15:], expected[15:], atol=1e-4)


@pytest.mark.slow
async def test_without_one_that_died_the_others_get_the_weights(policy, servers):
    servers[0].kill()
    await asyncio.to_thread(change, policy, "one")
    drawn = await policy.sample(PROMPT, LONG)
    assert drawn.version == "one"
    check(policy, drawn)
    assert SendingHalf.made[-1].client.world_size == 3


@pytest.mark.slow
async def test_one_that_comes_back_gets_them_alone_and_later_ones_with_the_others(policy, servers):
    servers[0].kill()
    await asyncio.to_thread(change, policy, "one")
    servers[0].start()
    await until(lambda: servers[0].receiving.version == "one")
    await until(lambda: all(one.problem is None for one in policy._samplers._pool.replicas))
    servers[1].kill()
    drawn = await policy.sample(PROMPT, LONG)
    assert drawn.version == "one"
    check(policy, drawn)
    servers[1].start()
    await until(lambda: all(one.problem is None for one in policy._samplers._pool.replicas))
    await asyncio.to_thread(change, policy, "two")
    assert [server.receiving.version for server in servers] == ["two", "two"]


@pytest.mark.slow
async def test_where_one_cannot_take_them_all_are_given_them_one_by_one(policy, servers):
    servers[0].failing_reload = True
    await asyncio.to_thread(change, policy, "one")
    drawn = await policy.sample(PROMPT, LONG)
    assert drawn.version == "one"
    check(policy, drawn)
    assert not servers[0].requests
    servers[0].failing_reload = False
    await until(lambda: all(one.problem is None for one in policy._samplers._pool.replicas))
    assert not any(server.paused for server in servers)


def joined(server):
    """What a server was asked of groups: to join one, and to leave it."""
    return [call for call in server.calls if call in (JOIN, LEAVE)]


async def test_a_server_leaves_its_group_before_it_joins_the_next(policy, servers):
    servers[0].kill()
    await asyncio.to_thread(change, policy, "one")
    assert joined(servers[1]) == [JOIN, LEAVE, JOIN]
    servers[0].start()
    await until(lambda: all(one.problem is None for one in policy._samplers._pool.replicas))
    await asyncio.to_thread(change, policy, "two")
    # The one that came back was given the weights in a group of its own.
    assert joined(servers[1]) == [JOIN, LEAVE, JOIN, LEAVE, JOIN]
    await asyncio.to_thread(policy.close)
    assert not any(server.receiving.group for server in servers)


@pytest.mark.slow
async def test_servers_that_go_or_fail_are_left_in_no_group(policy, servers):
    await asyncio.to_thread(policy.turn_sampler.change_servers, (servers[0].url,))
    assert [joined(server) for server in servers] == [[JOIN, LEAVE]] * 2
    servers[0].failing_reload = True
    await asyncio.to_thread(change, policy, "one")
    assert joined(servers[0])[:4] == [JOIN, LEAVE] * 2
    servers[0].failing_reload = False
    await until(lambda: all(one.problem is None for one in policy._samplers._pool.replicas))
    drawn = await policy.sample(PROMPT, LONG)
    assert drawn.version == "one"
    check(policy, drawn)


@pytest.mark.slow
async def test_older_servers_that_cannot_leave_a_group_join_the_next(tmp_path):
    with contextlib.ExitStack() as stack:
        old = [stack.enter_context(StandIn(tiny_folder(), version="0.32.0")) for _ in range(2)]
        policy = await asyncio.to_thread(vllm_policy, old, tmp_path, connect=SendingHalf)
        old[0].kill()
        await asyncio.to_thread(change, policy, "one")
        drawn = await policy.sample(PROMPT, LONG)
        assert drawn.version == "one"
        check(policy, drawn)
        await asyncio.to_thread(policy.close)


def test_vllm_is_needed_for_its_half(tmp_path):
    with StandIn(tiny_folder()) as server, pytest.raises(UsageError, match="pip install vllm"):
        vllm_policy([server], tmp_path, connect=nccl_engine)


def test_servers_without_a_weight_transfer_are_refused_with_the_option(tmp_path, monkeypatch):
    def refuse(half, info):
        raise Refused(500, "Worker failed with error 'Weight transfer not configured.'")

    def join(module, client):
        client.init_weight_transfer_engine(
            {"master_address": "127.0.0.1", "master_port": 1, "rank_offset": 1, "world_size": 2}
        )

    monkeypatch.setattr(ReceivingHalf, "init", refuse)
    refused = pytest.raises(UsageError, match="without --weight-transfer-config")
    with StandIn(tiny_folder(), gpus=1) as server, refused:
        vllm_policy([server], tmp_path, connect=join)
