"""Our environments trained by Tinker's client: `hud_integrations.tinker`."""

import pytest

pytest.importorskip("tinker", reason="scripts/setup-integration tinker")

import asyncio
import os
import signal

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
from hud.engine.sample.request import SampledTurn
from hud.errors import InfrastructureFault, UsageError
from hud.eval import Job, Taskset
from hud.trace import AgentStep, SamplingParams
from hud.train.rollouts.seeds import SeededAgent
from hud_integrations.tinker import SamplingProcess, TinkerModel, datums_of, model
from hud_integrations.tinker.sampling_process import Sampled, SampledSequence

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


class ScriptedSampler:
    """A sampling client whose sequences are the given tokens, and which notes what it was asked for, and when."""

    def __init__(self):
        self.asked, self.began = [], asyncio.get_running_loop().time()

    async def sample(self, prompt, num_samples, params):
        now = asyncio.get_running_loop().time()
        self.asked.append((prompt.to_ints(), num_samples, now - self.began))
        await asyncio.sleep(0)
        return Sampled([SampledSequence([9], [-1.0], "length")] * num_samples, None)


PARAMS = SamplingParams(max_tokens=1, temperature=1.0)


async def test_turns_that_were_answered_together_ask_together(server, service, monkeypatch):
    monkeypatch.setattr(model, "GATHER_SECONDS", 30.0)
    sampler = ScriptedSampler()
    policy = TinkerModel(sampler, folder_of(server), group=4).policy

    async def run(own):
        await policy.sample([5, 6], PARAMS)
        await asyncio.sleep(0.01 * own)
        await policy.sample([5, 6, 9, 7 + own % 2], PARAMS)
        await policy.sample([5, 6, 9, 7 + own % 2, 9, own], PARAMS)

    async with asyncio.timeout(10):
        await asyncio.gather(*map(run, range(4)))
    counts = [(len(prompt), count) for prompt, count, _ in sampler.asked]
    assert counts == [(2, 4), (4, 2), (4, 2), *[(6, 1)] * 4]


async def test_a_turn_waits_a_moment_for_runs_that_have_ended(server, service, monkeypatch):
    monkeypatch.setattr(model, "GATHER_SECONDS", 0.5)
    sampler = ScriptedSampler()
    policy = TinkerModel(sampler, folder_of(server), group=2).policy

    async def run(turns):
        for number in range(turns):
            await policy.sample([5, 6, *[9] * number], PARAMS)

    await asyncio.gather(run(1), run(3))
    times = [at for *_, at in sampler.asked]
    assert [count for _, count, _ in sampler.asked] == [2, 1, 1]
    assert times[1] - times[0] >= model.GATHER_SECONDS > times[2] - times[1]


async def test_a_run_that_ends_while_others_wait_leaves_them_their_samples(server, service):
    sampler = ScriptedSampler()
    policy = TinkerModel(sampler, folder_of(server)).policy
    turns = [asyncio.create_task(policy.sample([5, 6], PARAMS)) for _ in range(3)]
    await asyncio.sleep(0)
    turns[1].cancel()
    drawn = await asyncio.gather(*turns, return_exceptions=True)
    assert [type(one) for one in drawn] == [SampledTurn, asyncio.CancelledError, SampledTurn]
    assert [count for _, count, _ in sampler.asked] == [2]


async def test_a_process_of_its_own_sends_the_requests(server, service):
    folder = folder_of(server)
    sampler = await service.create_sampling_client(base_model="m")
    with await asyncio.to_thread(SamplingProcess) as process:
        remote = process.client(sampler)
        prompt = types.ModelInput.from_ints([5, 6, 7])
        params = types.SamplingParams(seed=3, max_tokens=6)
        ours = await remote.sample(prompt, 2, params)
        theirs = await sampler.sample(prompt, 2, params)
        assert [one.tokens for one in ours.sequences] == [one.tokens for one in theirs.sequences]
        job = await played(
            remote, folder, letters.tasks, 4, ToolLoopAgent(TinkerModel(remote, folder, group=4))
        )
        assert not [run.error for run in job.runs if run.error]
        with pytest.raises(InfrastructureFault, match="num_samples"):
            await remote.sample(prompt, 5000, params)
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(InfrastructureFault, match="has ended"):
            while True:
                await remote.sample(prompt, 1, params)


def test_a_process_without_the_client_says_what_to_install(monkeypatch, tmp_path):
    (tmp_path / "tinker.py").write_text("raise ImportError('no tinker')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(UsageError, match="pip install tinker"):
        SamplingProcess()


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
