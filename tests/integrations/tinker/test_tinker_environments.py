"""Our environments trained by Tinker's client: `hud.integrations.tinker`."""

import pytest

pytest.importorskip("tinker", reason="scripts/setup-integration tinker")

import asyncio

import numpy as np
import tinker
import torch
from tests.integrations import letters
from tests.integrations.tinker.server import folder_of, logprobs_of
from tinker import types
from transformers import AutoModelForCausalLM

from hud import Environment
from hud.agents.tool_loop import ToolLoopAgent
from hud.agents.types import AgentConfig, OpenAIChatConfig
from hud.client import connect, disconnect
from hud.eval import Job, Taskset
from hud.integrations.tinker import TinkerModel, datums_of
from hud.trace import AgentStep, SamplingParams
from hud.train.rollouts.seeds import SeededAgent

pytestmark = pytest.mark.timeout(300)
# Every turn is cut off, and the model is asked to go on: three turns, with tokens of ours between them.
THREE_TURNS = AgentConfig(max_steps=3, stop_on=frozenset())

env = Environment("vowels")


@env.template()
async def vowels(word: str):
    answer = yield f"Which letters are the vowels of {word}?"
    yield sum(letter in "aeiou" for letter in answer) / max(len(answer), 1)


@pytest.fixture
def service(server, tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    made = tinker.ServiceClient(base_url=server.url, api_key=f"tml-{server.key}")
    yield made
    made.close("success").result()
    disconnect(tmp_path / "home")


async def played(sampler, folder, tasks, group, agent=None):
    agent = agent or SeededAgent(
        TinkerModel(sampler, folder),
        OpenAIChatConfig(model="m"),
        SamplingParams(max_tokens=8),
        (0,),
    )
    job = await Job.start("tinker", group=group)
    await Taskset("tasks", tasks).run(agent, job=job)
    await job.finish()
    return job


async def test_sampled_ids_and_logprobs_are_recorded_and_trained_on(server, service):
    folder = folder_of(server)
    sampler = await service.create_sampling_client(base_model="m")
    agent = ToolLoopAgent(TinkerModel(sampler, folder), THREE_TURNS, SamplingParams(max_tokens=6))
    job = await played(sampler, folder, letters.tasks[:1], 4, agent)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    samples = [
        step.sample for run in job.runs for step in run.trace.steps if isinstance(step, AgentStep)
    ]
    assert len(samples) > len(job.runs)
    for one in samples:
        with torch.no_grad():
            ids = one.prompt_token_ids + one.output_token_ids
            expected = logprobs_of(model, ids)[len(one.prompt_token_ids) - 1 :]
        assert one.output_logprobs == pytest.approx(expected.tolist(), abs=1e-4)
    data = datums_of(job.runs)
    assert data
    sampled = {tuple(one.prompt_token_ids + one.output_token_ids) for one in samples}
    for datum in data:
        inputs = datum.loss_fn_inputs
        whole = datum.model_input.to_ints()[:1] + inputs["target_tokens"].data
        assert tuple(whole) in sampled  # The last turn extends the ones before it.
        counted = inputs["advantages"].to_numpy() != 0
        assert (inputs["logprobs"].to_numpy()[counted] < 0).all()
    means = datums_of(job.runs, token_mean=True)
    counts = sum((one.loss_fn_inputs["advantages"].to_numpy() != 0).sum() for one in data)
    assert means[0].loss_fn_inputs["advantages"].to_numpy() * counts == pytest.approx(
        data[0].loss_fn_inputs["advantages"].to_numpy(), rel=1e-5
    )
    # The runs are recorded here as any others.
    jobs = (await connect().get("/v2/jobs"))["items"]
    assert jobs[0]["name"] == "tinker"


class CountedSampler:
    """A sampling client that notes the number of samples of each request, and may fail."""

    def __init__(self, sampler, fails=False):
        self.sampler, self.fails, self.asked = sampler, fails, []

    async def sample(self, prompt, num_samples, params):
        self.asked.append(num_samples)
        if self.fails:
            raise RuntimeError("no such weights")
        return await self.sampler.sample(prompt, num_samples, params)


async def test_the_first_turns_of_a_group_are_one_request(server, service):
    sampler = CountedSampler(await service.create_sampling_client(base_model="m"))
    folder, asked = folder_of(server), SamplingParams(max_tokens=8, temperature=1.0)
    agent = ToolLoopAgent(TinkerModel(sampler, folder), params=asked)
    job = await played(sampler, folder, letters.tasks[:1], 4, agent)
    turns = [
        [step.sample for step in run.trace.steps if isinstance(step, AgentStep)] for run in job.runs
    ]
    assert sampler.asked[0] == 4
    assert sum(sampler.asked) == sum(map(len, turns))
    assert len({tuple(one[0].output_token_ids) for one in turns}) > 1, "each has its own sample"


async def test_turns_with_seeds_are_requests_of_their_own(server, service):
    sampler = CountedSampler(await service.create_sampling_client(base_model="m"))
    await played(sampler, folder_of(server), letters.tasks[:1], 4)
    assert set(sampler.asked) == {1}


async def test_a_failed_request_fails_every_run_that_waits_for_it(server, service):
    sampler = CountedSampler(None, fails=True)
    folder = folder_of(server)
    job = await played(
        sampler, folder, letters.tasks[:1], 4, ToolLoopAgent(TinkerModel(sampler, folder))
    )
    assert all("no such weights" in (run.error or "") for run in job.runs)


async def test_the_reward_of_an_environment_rises(server, service):
    folder = folder_of(server)
    client = await service.create_training_client_from_state("tinker://m/weights/base")
    tasks = [vowels(word=word) for word in ("red", "sun", "pot", "log")]
    rewards = []
    for _ in range(15):
        sampler = await client.save_weights_and_get_sampling_client()
        job = await played(sampler, folder, tasks, 8)
        rewards.append(job.reward)
        passed = client.forward_backward(
            datums_of(job.runs, token_mean=True), "importance_sampling"
        )
        stepped = client.optim_step(types.AdamParams(learning_rate=1e-2, grad_clip_norm=1.0))
        await asyncio.gather(passed, stepped)
    assert np.mean(rewards[-3:]) > np.mean(rewards[:3]) + 0.15
