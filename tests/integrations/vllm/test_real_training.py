"""`hud train` of the pretrained model's adapter, sampled by the real vLLM."""

import asyncio

import pytest
from tests.integrations.vllm.real_vllm import ABSENT, PYTHON

from hud import Environment
from hud.client import connect, disconnect
from hud.eval import Taskset
from hud.train.config import TrainConfig
from hud.train.loop import train

pytestmark = [
    pytest.mark.skipif(PYTHON is None, reason=ABSENT),
    pytest.mark.timeout(1200),  # The first test of a file may wait for the servers.
]

LARGEST_MEAN_GAP = 1e-4
"""Nats between sampler and trainer on average, both in float32."""
PROBE_TOKENS = 4
"""Tokens that are sampled after each load of weights, to verify them."""
SMALL = {"group": 4, "tasks_per_step": 2, "max_tokens": 24, "max_turns": 1, "lr": 1e-3}

env = Environment("colours")


@env.template()
async def describe(colour: str):
    answer = yield f"Describe the colour {colour}."
    yield len(set(answer)) / 60


TASKS = Taskset("colours", [describe(colour=colour) for colour in ("red", "green")])


@pytest.fixture
async def sampled_on(pretrained_home, tied_folder, monkeypatch):
    """Register the model, in float32 as the servers have it, and give it servers; returns its slug."""
    monkeypatch.setenv("HUD_HOME", str(pretrained_home))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    config = {"training": "lora", "lora_rank": 8, "dtype": "float32"}
    body = {"source": str(tied_folder), "name": "taught", "config": config}

    async def begin(*servers):
        await connect().post("/v2/models/add", body)
        urls = [server.url for server in servers]
        await connect().put(
            "/v2/models/taught/servers", {"servers": {"kind": "vllm", "urls": urls}}
        )
        return "taught"

    yield begin
    await connect().delete("/v2/models/taught")
    disconnect(pretrained_home)


def check(report):
    """Assert that every step is complete, and that what was sampled is what was trained on."""
    assert report.finished
    for entry in report.history:
        metrics = entry["metrics"]
        print({name: metrics[name] for name in metrics if "sampler_gap" in name})
        assert metrics["sampled_tokens:sum"] > 0
        assert metrics["failed_rollouts:sum"] == 0
        assert metrics["policy_lag:max"] == 0
        assert metrics["sampler_gap:mean"] < LARGEST_MEAN_GAP


async def test_two_steps_are_trained_on_what_the_server_sampled(sampled_on, tied_server):
    slug = await sampled_on(tied_server)
    before = await asyncio.to_thread(tied_server.generated)
    report = await train(TrainConfig(model=slug, steps=2, **SMALL), tasks=TASKS)
    check(report)
    sampled = sum(entry["metrics"]["sampled_tokens:sum"] for entry in report.history)
    probes = 3 * PROBE_TOKENS  # Of the base, and of each step.
    assert await asyncio.to_thread(tied_server.generated) - before == sampled + probes


async def test_a_step_is_complete_though_a_server_is_killed_in_its_middle(
    sampled_on, server, tied_server
):
    slug = await sampled_on(server, tied_server)
    running = asyncio.create_task(
        train(TrainConfig(model=slug, steps=2, **{**SMALL, "max_tokens": 48}), tasks=TASKS)
    )
    while not await asyncio.to_thread(server.running):
        assert not running.done(), running.result()
        await asyncio.sleep(0.05)
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)
    check(await running)


async def test_a_step_is_complete_though_the_only_server_is_killed_in_its_middle(
    sampled_on, tied_server
):
    slug = await sampled_on(tied_server)
    running = asyncio.create_task(
        train(TrainConfig(model=slug, steps=2, **{**SMALL, "max_tokens": 48}), tasks=TASKS)
    )
    while not await asyncio.to_thread(tied_server.running):
        assert not running.done(), running.result()
        await asyncio.sleep(0.05)
    await asyncio.to_thread(tied_server.kill)
    await asyncio.to_thread(tied_server.start)
    check(await running)
