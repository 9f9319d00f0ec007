"""OpenRLHF's agent executor, as released, plays our tasks: `scripts/setup-integration openrlhf`."""

import asyncio
import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("openrlhf.utils.agent", reason="scripts/setup-integration openrlhf")

import torch
from openrlhf.utils.agent import AgentExecutorBase
from tests.integrations import letters
from transformers import AutoModelForCausalLM, AutoTokenizer

from hud import Taskset
from hud.client import connect
from hud.engine.policy import Policy
from hud.engine.tiny_model import create_tiny
from hud.errors import UsageError
from hud.trace import SamplingParams
from hud_integrations.openrlhf import write_rows
from hud_integrations.shared.jobs import forget_jobs

FILE = """
from hud_integrations.openrlhf import agent_executor

AgentExecutor = agent_executor({environment!r}, agent={{"max_steps": 3, "stop_on": []}})
"""
MAX_LENGTH = 1500


class Engine:
    """vLLM's engine as OpenRLHF hands it over, with our sampler."""

    def __init__(self, folder):
        self.policy = Policy.load(folder, dtype=torch.float32)
        self.most = []

    async def generate(self, prompt_ids, sampling_params, multi_modal_data=None):
        self.most.append(sampling_params.max_tokens)
        # Seeded, so that no turn happens to end before its limit.
        params = SamplingParams(max_tokens=sampling_params.max_tokens, seed=len(prompt_ids))
        drawn = await self.policy.sample(prompt_ids, params)
        logprobs = [
            {token: SimpleNamespace(logprob=logprob)}
            for token, logprob in zip(drawn.token_ids, drawn.logprobs, strict=True)
        ]
        output = SimpleNamespace(token_ids=drawn.token_ids, text="", finish_reason="length", logprobs=logprobs)  # fmt: skip
        return SimpleNamespace(outputs=[output])


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    texts = ["red sun pot log letters"] * 20
    create_tiny(folder, texts, vocab_size=300, hidden=32, layers=2, max_context=4096)
    return folder


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    forget_jobs()


@pytest.fixture
def engine(model):
    made = Engine(model)
    yield made
    made.policy.close()


def executor_of(tmp_path, environment=letters.__file__):
    """Load the file of --train.agent_func_path as OpenRLHF does."""
    path = tmp_path / "agent_func.py"
    path.write_text(FILE.format(environment=str(environment)))
    spec = importlib.util.spec_from_file_location("agent_module", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert issubclass(module.AgentExecutor, AgentExecutorBase)
    return module.AgentExecutor()


def params(**settings):
    return SimpleNamespace(**{"max_tokens": 12, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "logprobs": 1} | settings)  # fmt: skip


def labels_of(tmp_path, tasks):
    write_rows(Taskset("letters", tasks), tmp_path / "tasks.jsonl")
    return [json.loads(line) for line in Path(tmp_path / "tasks.jsonl").open()]


async def samples(tmp_path, engine, model, row, number, **settings):
    """Play `number` samples of a prompt, as OpenRLHF's actor does: with one object of sampling parameters."""
    executor = executor_of(tmp_path)
    shared = params(**settings)
    tokenizer = AutoTokenizer.from_pretrained(model)
    return await asyncio.gather(
        *(
            executor.execute(row["prompt"], row["label"], shared, MAX_LENGTH, tokenizer, engine)
            for _ in range(number)
        )
    )


async def runs_of_the_job():
    (job,) = (await connect().get("/v2/jobs"))["items"]
    listed = (await connect().get(f"/v2/jobs/{job['id']}/traces"))["items"]
    return [await connect().get(f"/v2/trace/{one['id']}/full") for one in listed]


async def test_the_executor_returns_what_was_recorded(tmp_path, engine, model):
    (row,) = labels_of(tmp_path, letters.tasks[:1])
    assert row["prompt"] == "Write red with different letters."
    found = await samples(tmp_path, engine, model, row, 2)
    recorded = await runs_of_the_job()
    assert len({one["run"]["group_id"] for one in recorded}) == 1
    assert sorted(one["reward"] for one in found) == sorted(
        one["run"]["reward"] for one in recorded
    )
    steps = [one["trace"]["steps"] for one in recorded]
    turns = {
        tuple(turn["prompt_token_ids"] + turn["output_token_ids"]): [
            s["sample"] for s in run if s.get("sample")
        ]
        for run in steps
        for turn in [[s["sample"] for s in run if s.get("sample")][-1]]
    }
    for one in found:
        tokens, logprobs = one["observation_tokens"], one["rollout_log_probs"]
        own = turns[tuple(tokens)]
        assert len(own) == len(one["action_ranges"]) == 3, "turns that were cut off go on"
        for turn, (start, end) in zip(own, one["action_ranges"], strict=True):
            assert tokens[start:end] == turn["output_token_ids"]
            assert logprobs[start:end] == pytest.approx(turn["output_logprobs"], abs=1e-4)
            assert start == len(turn["prompt_token_ids"])
        off = set(range(len(tokens))) - {
            p for start, end in one["action_ranges"] for p in range(start, end)
        }
        assert {logprobs[place] for place in off} == {0.0}
        assert len(logprobs) == len(tokens)
        assert one["extra_logs"] == {"hud_unmeasured": 0.0}
    assert set(engine.most) == {12}


async def test_logprobs_are_those_of_the_model_in_training(tmp_path, engine, model):
    (row,) = labels_of(tmp_path, letters.tasks[:1])
    (found,) = await samples(tmp_path, engine, model, row, 1)
    ids = torch.tensor([found["observation_tokens"]])
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)(ids).logits
    computed = logits.log_softmax(-1)[0, :-1].gather(-1, ids[0, 1:, None])[:, 0]
    for start, end in found["action_ranges"]:
        given = torch.tensor(found["rollout_log_probs"][start:end])
        assert torch.allclose(given, computed[start - 1 : end - 1], atol=1e-4)


async def test_nothing_of_an_unmeasured_run_is_trained_on(tmp_path, engine, model):
    (row,) = labels_of(tmp_path, [letters.broken(word="red")])
    (found,) = await samples(tmp_path, engine, model, row, 1)
    assert found["action_ranges"] == []
    assert found["extra_logs"] == {"hud_unmeasured": 1.0}


async def test_lengths_are_the_trainers(tmp_path, engine, model):
    (row,) = labels_of(tmp_path, letters.tasks[:1])
    (found,) = await samples(tmp_path, engine, model, row, 1, max_tokens=None)
    assert len(found["observation_tokens"]) <= MAX_LENGTH
    (found,) = await samples(tmp_path, engine, model, row, 1, logprobs=None)
    assert found["rollout_log_probs"] is None


async def test_what_cannot_be_trained_on_is_refused(tmp_path, engine, model):
    (row,) = labels_of(tmp_path, letters.tasks[:1])
    with pytest.raises(UsageError, match="cut the distribution"):
        await samples(tmp_path, engine, model, row, 1, top_p=0.9)
    for label in ("4", "no json", None):
        with pytest.raises(UsageError, match="names no task"):
            await samples(tmp_path, engine, model, {"prompt": "x", "label": label}, 1)
