"""`hud train --backend tinker`: environments and records here, sampling and updates on a Tinker service."""

import pytest

pytest.importorskip("tinker", reason="scripts/setup-integration tinker")

import numpy as np
import torch
from tests.integrations.tinker.server import SIZES, TEXTS, folder_of, logprobs_of, started
from tests.train.test_distillation import joined
from transformers import AutoModelForCausalLM

from hud import Environment, Taskset, TrainingClient
from hud.agents.tool_loop import ToolLoopAgent
from hud.client import connect, disconnect
from hud.errors import UsageError
from hud.eval.scheduler import StopSignal
from hud.inference.models import chat_model
from hud.trace import AgentStep, SamplingParams
from hud.train.config import TrainConfig
from hud.train.loop import train
from hud.train.monitoring.progress import Reporter

pytestmark = pytest.mark.timeout(300)
env = Environment("vowels")


@env.template()
async def vowels(word: str):
    answer = yield f"Which letters are the vowels of {word}?"
    yield sum(letter in "aeiou" for letter in answer) / max(len(answer), 1)


TASKS = Taskset("vowels", [vowels(word=word) for word in ("red", "sun", "pot", "log")])


def configured(**settings):
    return TrainConfig(
        **{
            "model": "m",
            "backend": "tinker",
            "group": 8,
            "tasks_per_step": 4,
            "max_tokens": 8,
            "max_turns": 1,
            "lr": 1e-2,
            "steps": 2,
            **settings,
        }
    )


@pytest.fixture
def home(server, tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TINKER_BASE_URL", server.url)
    monkeypatch.setenv("TINKER_API_KEY", f"tml-{server.key}")
    yield tmp_path / "home"
    disconnect(tmp_path / "home")


def samples_of(runs):
    return [step.sample for run in runs for step in run.trace.steps if isinstance(step, AgentStep)]


async def test_the_reward_rises_and_the_records_are_here(home, server):
    report = await train(configured(steps=15, max_grad_norm=1.0), tasks=TASKS)
    rewards = [row["metrics"]["rollout_reward:mean"] for row in report.history]
    assert np.mean(rewards[-3:]) > np.mean(rewards[:3]) + 0.15
    assert report.finished
    client = connect()
    nodes = await client.get("/v2/models/m/checkpoints")
    assert [node["step"] for node in nodes] == list(range(1, 16))
    assert nodes[-1]["is_active"]
    assert nodes[-1]["metrics"]["sampler_gap:max"] < 1e-3
    paths = sorted((home / "models").glob("*/checkpoints/*/sampler/tinker.json"))
    assert paths
    assert all("tinker://" in path.read_text() for path in paths)
    jobs = (await client.get("/v2/jobs"))["items"]
    assert len(jobs) == 1


async def test_recorded_ids_and_logprobs_are_the_samplers(home, server):
    trainer = TrainingClient("m", backend="tinker")
    await trainer.model_id()
    agent = ToolLoopAgent(await chat_model("m"), params=SamplingParams(max_tokens=8))
    job = await TASKS.run(agent, group=4)
    model = AutoModelForCausalLM.from_pretrained(folder_of(server), dtype=torch.float64)
    for one in samples_of(job.runs):
        with torch.no_grad():
            expected = logprobs_of(model, one.prompt_token_ids + one.output_token_ids)
        drawn = expected[len(one.prompt_token_ids) - 1 :]
        assert one.output_logprobs == pytest.approx(drawn.tolist(), abs=1e-4)
    await job.runs[0].recorder.flush()
    # By their ids: the tokens and logprobs are those of the store.
    result = await trainer.step([run.trace_id for run in job.runs], learning_rate=1e-3)
    assert result.applied
    assert result.metrics["sampler_gap:max"] < 1e-4


@pytest.mark.parametrize("top", [1, 20])
async def test_a_model_of_the_service_teaches_one_of_the_platform(home, server, top):
    """The loss is the KL to the service's likeliest tokens and all others as one."""
    sizes = {**SIZES, "hidden": 16}
    await connect().post("/v2/models/create", {"name": "student", "texts": TEXTS, "sizes": sizes})
    await TrainingClient("m", backend="tinker").model_id()
    agent = ToolLoopAgent(await chat_model("student"), params=SamplingParams(max_tokens=8))
    job = await TASKS.run(agent, group=2)
    base = connect().embedded.parts.registry.model("student").folder
    models = [
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
        for folder in (base, folder_of(server))
    ]
    gap = 0.0
    for sample in samples_of(job.runs):
        tokens = [*sample.prompt_token_ids, *sample.output_token_ids]
        places = slice(len(sample.prompt_token_ids) - 1, len(tokens) - 1)
        with torch.no_grad():
            own, other = (
                model(torch.tensor([tokens])).logits[0, places].log_softmax(-1) for model in models
            )
        likeliest = other.topk(top).indices
        mine, theirs = joined(own, likeliest), joined(other, likeliest)
        gap += (mine.exp() * (mine - theirs)).sum().item()
    whole = {"kl_coef": 1.0, "kl_estimator": 0, "kl_top": float(top)}
    student = TrainingClient("student")
    result = await student.forward_backward(
        job.runs, teacher="m", reward_scale=0.0, loss_fn_config=whole
    )
    assert result.metrics["loss:sum"] == pytest.approx(gap, rel=2e-3)
    colder = SamplingParams(max_tokens=8, temperature=0.5)
    job = await TASKS.run(ToolLoopAgent(await chat_model("student"), params=colder), group=2)
    with pytest.raises(UsageError, match="sampled at temperature 1"):
        await student.forward_backward(job.runs, teacher="m", loss_fn_config=whole)


async def test_a_stopped_run_goes_on_from_its_last_checkpoint(home, server):
    stop = StopSignal()
    seen = []

    class Stopping(Reporter):
        def stepped(self, step, metrics):
            seen.append(step)
            if step == 1:
                stop.request()

    first = await train(configured(steps=4), tasks=TASKS, stop=stop, reporter=Stopping())
    assert (first.finished, first.next_step) == (False, 2)
    disconnect(home)
    second = await train(configured(steps=4), tasks=TASKS)
    assert (second.resumed, second.first_step, second.finished) == (True, 2, True)
    nodes = await connect().get("/v2/models/m/checkpoints")
    assert [node["step"] for node in nodes] == [1, 2, 3, 4]


async def test_training_goes_on_from_the_last_save_when_the_service_was_started_again(
    home, tmp_path, monkeypatch
):
    service = started(tmp_path / "service")
    monkeypatch.setenv("TINKER_BASE_URL", service.url)
    monkeypatch.setenv("TINKER_API_KEY", f"tml-{service.key}")

    class Restarting(Reporter):
        def stepped(self, step, metrics):
            if step == 0:
                service.kill()
                service.start()

    report = await train(configured(), tasks=TASKS, reporter=Restarting())
    assert (report.finished, report.next_step) == (True, 2)
    nodes = await connect().get("/v2/models/m/checkpoints")
    assert [node["step"] for node in nodes] == [1, 2]
    disconnect(home)
    assert service.stop() == 0


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"temperature": 0.7}, "temperature"),
        ({"max_lag": 1}, "swap='in_flight'"),
        ({"promote": "gate"}, "promote='gate'"),
        ({"loss_config": {"kl_coef": 0.1}}, "kl_coef"),
    ],
)
def test_a_setting_that_the_service_cannot_follow_is_named(settings, named):
    with pytest.raises(ValueError, match="backend='tinker'") as raised:
        configured(**settings)
    assert named in str(raised.value)


async def test_an_unknown_base_model_a_missing_key_and_local_weights_are_refused(
    home, server, monkeypatch
):
    with pytest.raises(UsageError, match="has no base model 'n'"):
        await train(configured(model="n"), tasks=TASKS)
    body = {"name": "here", "texts": ["red"], "sizes": {"vocab_size": 300}}
    await connect().post("/v2/models/create", body)
    with pytest.raises(UsageError, match="weights of 'here' are on this platform"):
        await train(configured(model="here"), tasks=TASKS)
    monkeypatch.setenv("TINKER_API_KEY", "wrong")
    with pytest.raises(UsageError, match="begin with 'tml-'"):
        await train(configured(), tasks=TASKS)
    monkeypatch.setenv("TINKER_API_KEY", "tml-wrong")
    with pytest.raises(UsageError, match="refuses the key"):
        await train(configured(), tasks=TASKS)
    monkeypatch.delenv("TINKER_API_KEY")
    with pytest.raises(UsageError, match="TINKER_API_KEY, which is not set"):
        await train(configured(), tasks=TASKS)
