"""Streams of tokens from an engine: the same from this process and from one of its own."""

import asyncio
import os
import signal
from dataclasses import replace

import pytest
from tests.platform.serving.engine_server import drawn, engine_of, request

from hud.errors import InfrastructureFault, NotFoundError, OverloadedError, UsageError
from hud.processes.presence import process_started
from hud_kernels.cpu.fused_decoder import FusedDecoder
from hud_platform.serving import inline
from hud_platform.serving.token_engine import EngineDownError
from hud_platform.store.tables import LOCAL_TEAM

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(params=["inline", pytest.param("worker", marks=pytest.mark.slow)])
async def served(request, tmp_path):
    async with engine_of(tmp_path, request.param) as (platform, model):
        yield platform, model


async def until(condition):
    for _ in range(600):
        if await condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it never came")


async def revived(engine, model):
    """Wait until an engine draws again."""

    async def draws():
        try:
            await drawn(engine, model, request())
        except EngineDownError:
            return False
        return True

    await until(draws)


async def active(engine):
    return sum(one["active"] + one["waiting"] for one in (await engine.status())["models"])


@pytest.mark.slow
async def test_a_seed_draws_the_same_tokens_in_both_processes(tmp_path):
    async with engine_of(tmp_path, "worker") as (platform, model):
        asked = request(40, seed=7, top_logprobs=3)
        theirs = await drawn(platform.engine, model, asked)
        ours = await drawn(inline.InlineEngine(platform.policies, platform.sessions), model, asked)
        platform.policies.close()
    assert theirs[0] == ours[0]
    # Not to the bit: where nothing is compiled yet, each process compiles, and the rounding may differ.
    assert theirs[1] == pytest.approx(ours[1], abs=1e-4)
    assert [[token for token, _ in row] for row in theirs[2]] == [
        [token for token, _ in row] for row in ours[2]
    ]
    assert theirs[3] == ours[3]
    assert len(ours[0]) == len(ours[2]) == 40
    assert all(len(row) == 3 and row[0][1] >= row[1][1] for row in ours[2])
    assert ours[3].finish_reason == "length"


async def test_a_sequence_that_is_not_followed_comes_at_once(served):
    platform, model = served
    asked = request(40, seed=7, top_logprobs=2)
    items = [
        item async for item in platform.engine.stream(model, None, replace(asked, followed=False))
    ]
    delta, end = items
    followed = await drawn(platform.engine, model, asked)
    assert (delta.token_ids, end.finish_reason) == (followed[0], followed[3].finish_reason)
    assert delta.logprobs == pytest.approx(followed[1], abs=1e-4)
    assert len(delta.top) == 40


async def test_what_cannot_be_drawn_has_no_probability(served):
    platform, model = served
    _, _, top, _ = await drawn(platform.engine, model, request(2, top_k=1, top_logprobs=2))
    assert [row[1][1] for row in top] == [-float("inf")] * 2


async def test_errors_arrive_as_what_they_are(served):
    platform, model = served
    with pytest.raises(UsageError, match="holds 512"):
        await drawn(platform.engine, model, request(prompt=[1] * 600))
    with pytest.raises(UsageError, match="token id 5000"):
        await drawn(platform.engine, model, request(prompt=[1, 5000]))
    with pytest.raises(NotFoundError, match="no checkpoint"):
        await drawn(platform.engine, model, request(), checkpoint="f" * 32)
    # And nothing of it is left.
    assert (await drawn(platform.engine, model, request()))[3].version is None


async def test_many_streams_at_once_get_their_own_tokens_each(served):
    platform, model = served
    asked = [request(24, prompt=[5, 6, 7 + place % 50], seed=place) for place in range(150)]
    together = await asyncio.gather(*(drawn(platform.engine, model, one) for one in asked))
    assert all(len(ids) == 24 for ids, *_ in together)
    alone = [await drawn(platform.engine, model, one) for one in asked[::50]]
    assert [ids for ids, *_ in together[::50]] == [ids for ids, *_ in alone]


async def test_a_stream_that_is_left_frees_its_slot(served):
    platform, model = served
    streams = [platform.engine.stream(model, None, request(400, seed=seed)) for seed in range(32)]
    await asyncio.gather(*map(anext, streams))
    assert await active(platform.engine) > 0
    for stream in streams:
        await stream.aclose()

    async def free():
        return await active(platform.engine) == 0

    await until(free)
    task = asyncio.create_task(drawn(platform.engine, model, request(400)))
    await asyncio.sleep(0.02)
    task.cancel()
    await until(free)


async def test_a_reader_that_sleeps_finds_everything_and_holds_up_nobody(served):
    platform, model = served
    slow = platform.engine.stream(model, None, request(200))
    ids = list((await anext(slow)).token_ids)
    assert len((await drawn(platform.engine, model, request(100)))[0]) == 100

    async def done():
        return await active(platform.engine) == 0

    await until(done)
    rest = [item async for item in slow]
    assert len(ids) + sum(len(item.token_ids) for item in rest[:-1]) == 200
    assert len(rest) <= 3  # In a few pieces, not in as many as there were steps.


async def test_a_full_queue_refuses_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(inline, "MOST_WAITING", 10)
    async with engine_of(tmp_path, "inline") as (platform, model):
        engine = platform.engine
        await drawn(engine, model, request())
        tasks = [asyncio.create_task(drawn(engine, model, request(60))) for _ in range(200)]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        refused = [one for one in results if isinstance(one, OverloadedError)]
        assert refused
        assert refused[0].retry_after > 0
        assert all(len(one[0]) == 60 for one in results if one not in refused)
        # Those who gave up waiting make room.
        tasks = [asyncio.create_task(drawn(engine, model, request(400))) for _ in range(74)]
        await asyncio.sleep(0.05)
        for task in tasks[64:]:
            task.cancel()
        await asyncio.sleep(0)
        assert len((await drawn(engine, model, request()))[0]) == 8
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.slow
async def test_checkpoints_beyond_those_that_stay_loaded_lose_nobody_a_request(served):
    platform, model = served
    others = [platform.registry.of(LOCAL_TEAM).fork(model.slug, f"fork-{n}") for n in range(4)]

    async def pinned(one):
        return [len((await drawn(platform.engine, one, request(30), "base"))[0]) for _ in range(4)]

    assert await asyncio.gather(*map(pinned, [model, *others])) == [[30] * 4] * 5


async def test_tenants_take_turns_where_slots_are_scarce(tmp_path):
    async with engine_of(tmp_path, "inline") as (platform, model):
        engine = platform.engine
        await drawn(engine, model, request())
        order = []

        async def one(tenant):
            await drawn(engine, model, request(60, tenant=tenant))
            order.append(tenant)

        greedy = [asyncio.create_task(one("greedy")) for _ in range(256)]
        await asyncio.sleep(0.01)
        await asyncio.gather(*(one("modest") for _ in range(4)), *greedy)
        assert max(place for place, who in enumerate(order) if who == "modest") < 200


@pytest.mark.parametrize("checkpoint", [None, "base"])
async def test_a_sampler_that_failed_is_replaced(tmp_path, monkeypatch, checkpoint):
    async with engine_of(tmp_path, "inline") as (platform, model):
        engine = platform.engine
        before = await drawn(engine, model, request(seed=1), checkpoint)

        def broken(*args):
            raise RuntimeError("out of memory")

        with monkeypatch.context() as patched:
            patched.setattr(FusedDecoder, "run", broken)
            with pytest.raises(InfrastructureFault, match="out of memory"):
                await drawn(engine, model, request(), checkpoint)
        assert (await drawn(engine, model, request(seed=1), checkpoint))[0] == before[0]


@pytest.mark.slow
async def test_a_killed_engine_fails_what_was_in_flight_and_comes_back(tmp_path):
    async with engine_of(tmp_path, "worker") as (platform, model):
        engine = platform.engine
        before = await drawn(engine, model, request(seed=3))
        # So many that none is over before a loaded machine gets to kill the engine.
        streams = [engine.stream(model, None, request(400)) for _ in range(32)]
        await asyncio.gather(*(anext(stream) for stream in streams))
        os.kill(engine.engine_of(model).pid, signal.SIGKILL)
        for stream in streams:
            with pytest.raises(EngineDownError, match="last checkpoints"):
                async for _ in stream:
                    pass
        with pytest.raises(EngineDownError) as down:
            await drawn(engine, model, request())
        assert not platform.engine.up
        assert down.value.status == 503
        assert down.value.retry_after >= 1
        await revived(engine, model)
        assert platform.engine.up
        assert (await drawn(engine, model, request(seed=3)))[0] == before[0]


@pytest.mark.slow
async def test_a_stopped_engine_leaves_no_process_behind(tmp_path):
    async with engine_of(tmp_path, "worker") as (platform, model):
        await drawn(platform.engine, model, request())
        pid = platform.engine.engine_of(model).pid
        await platform.engine.stop()
        assert process_started(pid) is None
        with pytest.raises(EngineDownError, match="stopping"):
            await drawn(platform.engine, model, request())
