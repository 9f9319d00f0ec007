"""Turns that vLLM servers draw: the same tokens and logprobs as ours, wherever servers go in the meantime."""

import asyncio
import contextlib
import threading

import numpy as np
import pytest
from tests.engine.tiny_policy import tiny_folder
from tests.engine.waiting import until
from tests.integrations.vllm import vllm_stand_in
from tests.integrations.vllm.vllm_policy import BASE, vllm_policy
from tests.integrations.vllm.vllm_stand_in import StandIn

from hud.engine.learn.local_trainer import LocalTrainer
from hud.engine.sample.request import Turn
from hud.errors import ContextOverflow, InfrastructureFault, UsageError
from hud.learning.datums import Datum
from hud.trace import SamplingParams
from hud_integrations.vllm import replica_pool

LONG = SamplingParams(max_tokens=40, seed=1)
PROMPT = [5 + place % 40 for place in range(40)]


@pytest.fixture
def servers():
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(StandIn(tiny_folder())) for _ in range(2)]


@pytest.fixture
def policy(servers, tmp_path):
    made = vllm_policy(servers, tmp_path)
    yield made
    made.close()


@pytest.fixture
def alone(servers, tmp_path):
    """A policy with one server only."""
    made = vllm_policy(servers[:1], tmp_path)
    yield made
    made.close()


def trained_logprobs(policy, prompt, drawn, temperature=1.0):
    """What the trainer says of drawn tokens."""
    ids = np.array([*prompt, *drawn.token_ids])
    mask = np.array([0.0] * len(prompt) + [1.0] * len(drawn.token_ids), dtype=np.float32)
    zeros = np.zeros(len(ids), np.float32)
    datum = Datum(
        tokens=ids,
        mask=mask,
        logprobs=zeros,
        advantages=zeros,
        weights=mask,
        temperatures=np.full(len(ids), temperature, np.float32),
        traj_idx=0,
    )
    return LocalTrainer(policy.decoder).forward([datum])[0][mask > 0]


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 0.5])
async def test_logprobs_are_those_of_the_trainer(policy, temperature):
    params = SamplingParams(max_tokens=40, temperature=temperature)
    drawn = await policy.sample(PROMPT, params)
    expected = trained_logprobs(policy, PROMPT, drawn, temperature)
    np.testing.assert_allclose(drawn.logprobs, expected, atol=1e-5)


async def test_what_is_asked_is_what_is_drawn_from(policy, servers):
    policy.chat.stop_ids = frozenset({7, 9})
    await asyncio.gather(
        policy.sample(PROMPT, SamplingParams(max_tokens=2, temperature=0.7, top_k=3, seed=2**70)),
        policy.sample(PROMPT[:9], SamplingParams(max_tokens=3, top_p=0.8)),
    )
    asked = sorted(
        (one for server in servers for one in server.requests), key=lambda r: r.max_tokens
    )
    first, second = asked
    assert (first.temperature, first.top_k, first.top_p) == (0.7, 3, 1.0)
    assert (second.temperature, second.top_k, second.top_p) == (1.0, 0, 0.8)
    assert (first.prompt, second.prompt) == (PROMPT, PROMPT[:9])
    assert second.seed is None
    for one in asked:
        assert one.stop_token_ids == [7, 9]
        assert one.ignore_eos
        assert (one.repetition_penalty, one.min_p) == (1.0, 0.0)


async def test_a_token_beyond_the_vocabulary_is_the_servers_failure(policy, monkeypatch):
    one = SamplingParams(max_tokens=1)
    await policy.sample(PROMPT, one)
    real, size = vllm_stand_in.sample_tokens, policy.decoder.config.vocab_size
    beyond = [True]

    def sampled(logits, params, uniforms):
        ids, logprobs = real(logits, params, uniforms)
        return ([size] * len(ids) if beyond and beyond.pop() else ids), logprobs

    monkeypatch.setattr(vllm_stand_in, "sample_tokens", sampled)
    drawn = await asyncio.wait_for(policy.sample(PROMPT, one), 30)
    assert not beyond
    assert drawn.token_ids[0] < size


@pytest.mark.slow
async def test_a_seed_draws_the_same_again(alone):
    first, second = [await alone.sample(PROMPT, LONG) for _ in range(2)]
    assert first.token_ids == second.token_ids
    other = await alone.sample(PROMPT, SamplingParams(max_tokens=40, seed=2))
    assert other.token_ids != first.token_ids


async def test_a_turn_ends_with_its_end_token_and_that_is_a_token_of_it(alone):
    free = await alone.sample(PROMPT, LONG)
    assert (free.finish_reason, len(free.token_ids)) == ("length", 40)
    alone.chat.stop_ids = frozenset({free.token_ids[10]})
    place = free.token_ids.index(free.token_ids[10])
    ended = await alone.sample(PROMPT, LONG)
    assert ended.finish_reason == "stop"
    assert ended.token_ids == free.token_ids[: place + 1]
    assert ended.logprobs == free.logprobs[: place + 1]


async def test_a_stop_that_is_text_ends_the_request_on_its_server(alone, servers):
    drawn = await alone.sample(PROMPT, LONG, stopped=lambda ids: len(ids) == 5)
    assert (drawn.finish_reason, len(drawn.token_ids)) == ("stop", 5)
    await until(lambda: not servers[0].sequences)


async def test_a_followed_turn_is_seen_token_for_token(alone, servers):
    servers[0].hold_at(3)
    heard, known = [], threading.Event()

    def hear():
        known.wait()  # Another thread hears of the first token, maybe before `submit` is back.
        heard.append(len(request.logprobs))

    asked = Turn(prompt=PROMPT, params=LONG, stop_ids=frozenset(), followed=True, top=2)
    request = alone.submit(asked, hear)
    known.set()
    await until(lambda: len(request.logprobs) == 3)
    assert request.outcome is None
    servers[0].hold_at(None)
    await until(lambda: request.outcome is not None)
    assert heard == sorted(heard)
    assert heard[-1] == 40
    assert [len(row) for row in request.likeliest] == [2] * 40
    assert all(row[0][1] >= row[1][1] for row in request.likeliest)


async def test_a_turn_that_nobody_wants_any_more_leaves_its_server(alone, servers):
    servers[0].hold_at(3)
    turn = asyncio.create_task(alone.sample(PROMPT, LONG))
    await until(lambda: servers[0].sequences)
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    await until(lambda: not servers[0].sequences)
    await until(lambda: alone.turns == 0)


async def test_what_cannot_be_asked_is_refused_at_once(alone):
    with pytest.raises(UsageError, match="holds the token id 400; the model knows"):
        await alone.sample([5, 400], LONG)
    with pytest.raises(ContextOverflow, match="512 tokens; the model's context holds 512"):
        await alone.sample([5] * 512, LONG)
    with pytest.raises(UsageError, match="empty"):
        await alone.sample([], LONG)


async def test_a_turn_takes_no_more_than_the_servers_context(tmp_path):
    with StandIn(tiny_folder(), max_context=64) as server:
        made = vllm_policy([server], tmp_path)
        drawn = await made.sample(PROMPT, SamplingParams(max_tokens=100))
        assert (drawn.finish_reason, len(drawn.token_ids)) == ("length", 24)
        made.close()


# -- several servers --------------------------------------------------------------------------------


async def test_a_group_is_played_where_its_long_prompt_is_known(policy, servers, monkeypatch):
    monkeypatch.setattr(replica_pool, "SEQUENCE_TOKENS", len(PROMPT) // 8)
    await asyncio.gather(*(policy.sample(PROMPT, LONG) for _ in range(8)))
    assert sorted(len(server.requests) for server in servers) == [0, 8]


@pytest.mark.slow
async def test_a_conversation_stays_with_its_server_and_others_go_elsewhere(policy, servers):
    conversations = [[number + 5] * 40 for number in range(4)]
    for _ in range(3):
        turns = await asyncio.gather(*(policy.sample(one, LONG) for one in conversations))
        conversations = [
            [*one, *turn.token_ids, 6, 6] for one, turn in zip(conversations, turns, strict=True)
        ]
    assert [len(server.requests) for server in servers] == [6, 6]
    for server in servers:
        assert len({request.prompt[0] for request in server.requests}) == 2
    # All but what came since the last turn, which ended within a block.
    assert all(turn.cached_tokens == 112 for turn in turns)


async def test_an_overloaded_server_is_spared_what_it_knows(policy, servers):
    for server in servers:
        server.hold_at(1)
    short = SamplingParams(max_tokens=3)
    turns = [asyncio.create_task(policy.sample(PROMPT, short)) for _ in range(40)]
    await until(lambda: sum(len(server.sequences) for server in servers) == 40)
    assert min(len(server.sequences) for server in servers) >= 10
    for server in servers:
        server.hold_at(None)
    await asyncio.gather(*turns)


async def test_a_server_killed_in_the_middle_loses_no_token_and_none_is_drawn_twice(
    policy, servers
):
    for server in servers:
        server.hold_at(15)
    turn = asyncio.create_task(policy.sample(PROMPT, LONG))
    await until(lambda: any(server.reached.is_set() for server in servers))
    killed = next(server for server in servers if server.sequences)
    other = next(server for server in servers if server is not killed)
    await until(lambda: sum(map(len, seen(policy))) == 15)
    before = list(seen(policy)[0])
    killed.kill()
    other.hold_at(None)
    drawn = await turn
    assert drawn.token_ids[:15] == before
    assert len(drawn.token_ids) == len(drawn.logprobs) == 40
    (continued,) = other.requests
    assert continued.prompt == PROMPT + before
    assert continued.max_tokens == 25
    assert continued.seed != killed.requests[0].seed, "random numbers must not be used twice"
    np.testing.assert_allclose(drawn.logprobs, trained_logprobs(policy, PROMPT, drawn), atol=1e-5)
    assert drawn.swaps == []


async def test_a_turn_that_is_thrown_out_goes_on(alone, servers):
    servers[0].hold_at(10)
    turn = asyncio.create_task(alone.sample(PROMPT, LONG))
    await until(servers[0].reached.is_set)
    servers[0].throw_out()
    servers[0].hold_at(None)
    drawn = await turn
    assert len(drawn.token_ids) == 40
    np.testing.assert_allclose(drawn.logprobs, trained_logprobs(alone, PROMPT, drawn), atol=1e-5)


async def test_a_server_that_falls_silent_is_given_up(policy, servers):
    for server in servers:
        server.hold_at(5)
    turn = asyncio.create_task(policy.sample(PROMPT, LONG))
    await until(lambda: any(server.reached.is_set() for server in servers))
    stuck = next(server for server in servers if server.sequences)
    stuck.silent = True
    for server in servers:
        if server is not stuck:
            server.hold_at(None)
    assert len((await turn).token_ids) == 40
    stuck.silent = False


@pytest.mark.slow
async def test_a_turn_that_waits_for_its_first_answer_goes_on_where_the_servers_change(
    alone, servers
):
    gone, other = servers
    gone.silent = True
    turn = asyncio.create_task(alone.sample(PROMPT, LONG))
    await asyncio.sleep(0.2)
    async with asyncio.timeout(30):
        await asyncio.to_thread(alone.turn_sampler.change_servers, (other.url,))
        assert len((await turn).token_ids) == 40
    assert other.requests


@pytest.mark.slow
async def test_a_server_that_lives_but_draws_nothing_is_given_up(servers, tmp_path):
    policy = vllm_policy(servers, tmp_path, silence=0.5)
    for server in servers:
        server.hold_at(5)
    turn = asyncio.create_task(policy.sample(PROMPT, LONG))
    await until(lambda: any(server.reached.is_set() for server in servers))
    next(server for server in servers if not server.sequences).hold_at(None)
    assert len((await turn).token_ids) == 40
    policy.close()


@pytest.mark.slow
async def test_a_server_on_its_way_out_finishes_what_it_has_and_is_given_nothing_more(
    policy, servers
):
    for server in servers:
        server.hold_at(5)
    turn = asyncio.create_task(policy.sample(PROMPT, LONG))
    await until(lambda: any(server.reached.is_set() for server in servers))
    leaving = next(server for server in servers if server.sequences)
    leaving.refusing = True
    for server in servers:
        server.hold_at(None)
    await asyncio.gather(*(policy.sample(PROMPT, LONG) for _ in range(4)))
    await turn
    assert [len(server.requests) for server in servers if server is leaving] == [1]


@pytest.mark.slow
async def test_a_server_that_comes_back_draws_again(policy, servers):
    servers[0].kill()
    servers[1].kill()
    turn = asyncio.create_task(policy.sample(PROMPT, LONG))
    await asyncio.sleep(0.1)
    servers[1].start()
    assert len((await turn).token_ids) == 40


async def test_with_all_of_them_down_a_turn_fails_and_says_which(servers, tmp_path):
    policy = vllm_policy(servers, tmp_path, server=0.5)
    for server in servers:
        server.kill()
    with pytest.raises(InfrastructureFault) as raised:
        await policy.sample(PROMPT, LONG)
    said = str(raised.value)
    assert said.startswith("No vLLM server can sample now.")
    assert said.endswith("Start one, or sample here again: hud models vllm MODEL --off.")
    assert all(server.url in said for server in servers)
    policy.close()


@pytest.mark.slow
async def test_closing_tells_who_waits(policy, servers):
    for server in servers:
        server.hold_at(2)
    turn = asyncio.create_task(policy.sample(PROMPT, LONG))
    await until(lambda: any(server.sequences for server in servers))
    await asyncio.to_thread(policy.close)
    with pytest.raises(InfrastructureFault, match="closed"):
        await turn
    policy.revive()
    for server in servers:
        server.hold_at(None)
    assert (await policy.sample(PROMPT, LONG)).version == BASE


def seen(policy):
    """The tokens of every turn on its way, as they are here now."""
    return [request.token_ids for request in policy._samplers._requests]


@pytest.mark.slow
async def test_a_shared_system_prompt_leaves_the_turns_on_all_servers(tmp_path):
    system = [place % 90 + 20 for place in range(300)]
    with StandIn(tiny_folder()) as one, StandIn(tiny_folder()) as other:
        policy = await asyncio.to_thread(vllm_policy, [one, other], tmp_path)
        for server in (one, other):
            server.hold_at(5)
        params = SamplingParams(max_tokens=20)
        turns = [
            asyncio.create_task(policy.sample([*system, number], params)) for number in range(8)
        ]
        replicas = policy._samplers._pool.replicas
        await until(lambda: sum(len(replica.active) for replica in replicas) == 8)
        assert [len(replica.active) for replica in replicas] == [4, 4]
        for server in (one, other):
            server.hold_at(None)
        await asyncio.gather(*turns)
        await asyncio.to_thread(policy.close)


async def test_a_prompt_that_no_cache_had_stays_uncached_when_its_turn_goes_on(alone, servers):
    """The second stream's prompt is in the cache, where the first stream put it."""
    server = servers[0]
    server.hold_at(5)
    turn = asyncio.create_task(alone.sample(PROMPT, LONG))
    await until(lambda: sum(map(len, seen(alone))) == 5)
    server.hold_at(None)
    server.throw_out()
    drawn = await turn
    assert len(server.requests) == 2
    assert (len(drawn.token_ids), drawn.cached_tokens) == (40, 0)
