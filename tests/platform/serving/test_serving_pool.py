"""A process for each model: what befalls one leaves the others alone, and none stays that nobody asks."""

import asyncio
import os
import signal

import pytest
from tests.platform.serving.engine_server import drawn, engine_of, request
from tests.platform.serving.test_serving_streams import revived, until
from tests.platform.serving.test_serving_training import a_pass, a_step, ask

from hud.processes.presence import process_started
from hud_platform.serving import pool
from hud_platform.serving.calls import ForgetModel
from hud_platform.serving.token_engine import EngineDownError

pytestmark = pytest.mark.timeout(180)


async def pid_of(engine, model):
    await drawn(engine, model, request())
    return engine.engine_of(model).pid


async def ended(pid):
    async def gone():
        return process_started(pid) is None

    await until(gone)


@pytest.mark.slow
async def test_a_killed_process_is_missed_by_its_own_model_alone(tmp_path):
    async with engine_of(tmp_path, "worker", "one", "other") as (platform, one, other):
        engine = platform.engine
        first, second = await pid_of(engine, one), await pid_of(engine, other)
        assert first != second
        stream = engine.stream(other, None, request(400))
        await anext(stream)
        os.kill(first, signal.SIGKILL)
        await ended(first)
        with pytest.raises(EngineDownError):
            await drawn(engine, one, request())
        assert platform.engine.up
        *deltas, end = [item async for item in stream]
        assert end.finish_reason == "length"
        assert sum(len(delta.token_ids) for delta in deltas) < 400
        assert len((await drawn(engine, other, request()))[0]) == 8
        assert await pid_of(engine, other) == second
        await revived(engine, one)


@pytest.mark.slow
async def test_where_there_is_one_process_models_share_it_while_it_is_busy(tmp_path):
    async with engine_of(tmp_path, "worker", "one", "other", engines=1) as (platform, one, other):
        engine = platform.engine
        stream = engine.stream(one, None, request(400))
        await anext(stream)
        assert len((await drawn(engine, other, request()))[0]) == 8
        assert engine.engine_of(one) is engine.engine_of(other)
        await stream.aclose()


@pytest.mark.slow
async def test_the_process_that_was_idle_longest_makes_room_and_loses_nothing(tmp_path):
    slugs = "one", "two", "three"
    async with engine_of(tmp_path, "worker", *slugs, engines=2) as (platform, one, two, three):
        engine = platform.engine
        await ask(engine, one, a_pass())
        await ask(engine, one, a_step(save=False))
        first, second = engine.engine_of(one).pid, await pid_of(engine, two)
        third = await pid_of(engine, three)
        await ended(first)
        assert engine.engine_of(two).pid == second
        assert len({first, second, third}) == 3
        # A step that no checkpoint stood for was kept as it went; the next one builds on it.
        await ask(engine, one, a_pass(1))
        assert (await ask(engine, one, a_step()))["step"] == 2


@pytest.mark.slow
async def test_a_process_that_nobody_asks_is_ended_and_comes_back_when_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "IDLE_SECONDS", 0.3)
    monkeypatch.setattr(pool, "LOOK_SECONDS", 0.1)
    async with engine_of(tmp_path, "worker") as (platform, model):
        before = await drawn(platform.engine, model, request(seed=1))
        (pid,) = (await platform.engine.status())["pids"]
        await ended(pid)
        assert (await drawn(platform.engine, model, request(seed=1)))[0] == before[0]


@pytest.mark.slow
async def test_what_was_started_before_anybody_asked_is_the_first_models(tmp_path):
    async with engine_of(tmp_path, "worker") as (platform, model):
        await platform.start_engine()
        (pid,) = (await platform.engine.status())["pids"]
        assert await pid_of(platform.engine, model) == pid


async def test_a_removed_models_process_ends(tmp_path):
    async with engine_of(tmp_path, "worker") as (platform, model):
        pid = await pid_of(platform.engine, model)
        await asyncio.wait_for(platform.engine.call(model, ForgetModel()), 30)
        assert process_started(pid) is None
