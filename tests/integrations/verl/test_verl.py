"""verl's agent loop worker, as released, plays our tasks: `scripts/setup-integration verl`."""

import os
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("verl", reason="scripts/setup-integration verl")

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import hydra
import torch
from hydra import compose, initialize_config_module
from pyarrow import parquet
from tests.integrations import letters
from transformers import AutoModelForCausalLM, AutoTokenizer
from verl import DataProto
from verl.experimental.agent_loop.agent_loop import (
    AgentLoopWorker,
    DictConfigWrap,
    ToolListWrap,
    _agent_loop_registry,
)
from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn
from verl.workers.rollout.replica import TokenOutput

from hud import Taskset
from hud.client import connect
from hud.engine.policy import Policy
from hud.engine.tiny_model import create_tiny
from hud.errors import InfrastructureFault, UsageError
from hud.trace import SamplingParams, ToolCall
from hud_integrations.shared.jobs import forget_jobs
from hud_integrations.shared.token_model import chat_format
from hud_integrations.verl import HUDRollout, write_parquet

LETTERS = Path(letters.__file__)
PROMPT, RESPONSE = 1200, 600


class Sampler:
    """A client of verl's servers, with our sampler for a server."""

    def __init__(self, folder):
        self.policy = Policy.load(folder, dtype=torch.float32)
        self.requests = []

    async def generate(self, request_id, *, prompt_ids, sampling_params, **_):
        self.requests.append(request_id)
        assert sampling_params["logprobs"]
        # Seeded, so that no turn happens to end before its limit.
        seed = self.requests.count(request_id)
        most = SamplingParams(max_tokens=sampling_params["max_tokens"], seed=seed)
        drawn = await self.policy.sample(prompt_ids, most)
        return TokenOutput(
            token_ids=drawn.token_ids, log_probs=drawn.logprobs, stop_reason="completed"
        )


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    create_tiny(
        folder,
        ["red sun pot log letters"] * 20,
        vocab_size=300,
        hidden=32,
        layers=2,
        max_context=4096,
    )
    return folder


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    forget_jobs()


@pytest.fixture
def sampler(model):
    made = Sampler(model)
    yield made
    made.policy.close()


def config(tmp_path, model, *overrides, **settings):
    """Return verl's own configuration, with the YAML that users copy."""
    lines = {"environment": str(LETTERS), "max_tokens": 12, **settings}
    lines["agent"] = "{max_steps: 3, stop_on: []}"
    yaml = tmp_path / "agent.yaml"
    yaml.write_text(
        "- name: hud_agent\n  _target_: hud_integrations.verl.HudAgentLoop\n"
        + "".join(f"  {name}: {value}\n" for name, value in lines.items())
    )
    rollout = "actor_rollout_ref.rollout"
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose(
            "ppo_trainer",
            overrides=[
                f"actor_rollout_ref.model.path={model}",
                f"{rollout}.name=vllm",
                f"{rollout}.prompt_length={PROMPT}",
                f"{rollout}.response_length={RESPONSE}",
                f"{rollout}.calculate_log_probs=True",
                f"{rollout}.agent.agent_loop_config_path={yaml}",
                *overrides,
            ],
        )


def rows_of(tmp_path, tasks, model, cfg, repeat=1):
    """Return the batch that verl makes of an exported file."""
    path = tmp_path / "tasks.parquet"
    write_parquet(Taskset("letters", tasks), path)
    tokenizer = AutoTokenizer.from_pretrained(model)
    dataset = RLHFDataset(data_files=str(path), tokenizer=tokenizer, config=cfg.data)
    rows = [{**dataset[place], "uid": f"prompt-{place}"} for place in range(len(dataset))]
    batch = DataProto.from_single_dict(
        collate_fn([dict(row) for row in rows for _ in range(repeat)])
    )
    batch.meta_info = {"global_steps": 0, "validate": False}
    return batch


async def recorded(trace_id):
    """Return a run and its samples as they were recorded."""
    found = await connect().get(f"/v2/trace/{trace_id}/full")
    samples = [step["sample"] for step in found["trace"]["steps"] if step.get("sample")]
    return found["run"], samples


async def test_the_worker_plays_tasks_and_returns_what_was_recorded(tmp_path, model, sampler):
    cfg = config(tmp_path, model, "trainer.use_v1=False")
    batch = rows_of(tmp_path, letters.tasks[:2], model, cfg, repeat=2)
    out = await AgentLoopWorker(cfg, sampler).generate_sequences(batch)
    groups = set()
    for row in range(4):
        run, samples = await recorded(out.non_tensor_batch["hud_trace_id"][row])
        groups.add(run["group_id"])
        assert len(samples) == 3, "turns that were cut off go on"
        mask = out.batch["response_mask"][row].bool()
        sampled = [token for sample in samples for token in sample["output_token_ids"]]
        assert out.batch["responses"][row][mask].tolist() == sampled
        assert (~mask[: mask.nonzero().max()]).any(), "tokens between the turns are not trained on"
        logprobs = [value for sample in samples for value in sample["output_logprobs"]]
        found = out.batch["rollout_log_probs"][row]
        assert torch.allclose(found[mask], torch.tensor(logprobs), atol=1e-4)
        last = int(out.batch["attention_mask"][row][PROMPT:].sum()) - 1
        scores = out.batch["rm_scores"][row]
        assert scores[last].item() == pytest.approx(run["reward"])
        assert scores.count_nonzero() <= 1, "the reward is on the last token alone"
        whole = out.batch["input_ids"][row][out.batch["attention_mask"][row].bool()].tolist()
        ids = samples[-1]["prompt_token_ids"] + samples[-1]["output_token_ids"]
        assert whole == ids, "one sequence, id for id"
    assert len(groups) == 2, "a group for each prompt"
    assert len(set(sampler.requests)) == 4, "one request id for all turns of a run"


async def test_logprobs_are_those_of_the_model_in_training(tmp_path, model, sampler):
    cfg = config(tmp_path, model, "trainer.use_v1=False")
    batch = rows_of(tmp_path, letters.tasks[:1], model, cfg)
    out = await AgentLoopWorker(cfg, sampler).generate_sequences(batch)
    trained = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    ids, attention = out.batch["input_ids"], out.batch["attention_mask"]
    with torch.no_grad():
        logits = trained(
            input_ids=ids, attention_mask=attention, position_ids=out.batch["position_ids"]
        ).logits
    logprobs = logits.log_softmax(-1)[:, :-1].gather(-1, ids[:, 1:, None])[0, :, 0]
    mask = out.batch["response_mask"][0].bool()
    computed = logprobs[PROMPT - 1 :][mask]
    assert torch.allclose(out.batch["rollout_log_probs"][0][mask], computed, atol=1e-4)


def loop_of(cfg, model, sampler):
    """Return an agent loop as verl's worker makes one."""
    worker = AgentLoopWorker(cfg, sampler)
    return hydra.utils.instantiate(
        config=_agent_loop_registry["hud_agent"],
        trainer_config=DictConfigWrap(config=cfg),
        server_manager=sampler,
        tokenizer=worker.tokenizer,
        processor=None,
        hf_model_type=worker.hf_model_type,
        dataset_cls=worker.dataset_cls,
        data_config=DictConfigWrap(cfg.data),
        tools=ToolListWrap([]),
    )


PARAMS = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "repetition_penalty": 1.0,
    "logprobs": True,
}


def row_of(batch, place=0):
    return {name: values[place] for name, values in batch.non_tensor_batch.items()}


async def test_the_second_trainer_gets_all_sequences_and_no_unmeasured_run(
    tmp_path, model, sampler
):
    cfg = config(tmp_path, model)
    assert cfg.trainer.use_v1, "verl's default"
    batch = rows_of(tmp_path, [letters.tasks[0], letters.broken(word="red")], model, cfg)
    outputs = await loop_of(cfg, model, sampler).run(dict(PARAMS), **row_of(batch))
    assert len(outputs) == 1
    assert outputs[-1].extra_fields["reward_extra_info"] == {}
    with pytest.raises(InfrastructureFault, match="disk is gone"):
        await loop_of(cfg, model, sampler).run(dict(PARAMS), **row_of(batch, 1))


async def test_the_first_trainer_gets_unmeasured_runs_masked(tmp_path, model, sampler):
    cfg = config(tmp_path, model, "trainer.use_v1=False")
    batch = rows_of(tmp_path, [letters.broken(word="red")], model, cfg)
    out = await AgentLoopWorker(cfg, sampler).generate_sequences(batch)
    assert not out.batch["response_mask"].any()


async def test_subagents_and_splits_are_sequences_of_their_own(tmp_path, model, sampler):
    (tmp_path / "team.py").write_text(TEAM)
    cfg = config(tmp_path, model, environment=tmp_path / "team.py")
    task = Taskset.from_file(tmp_path / "team.py")["lead"]
    batch = rows_of(tmp_path, [task], model, cfg)
    loop = loop_of(cfg, model, sampler)

    def calling(chat):
        """Make the first turn of the lead a call of its subagent."""
        parse = chat.parse

        def parsed(ids, tools, *, opened=False):
            found = parse(ids, tools, opened=opened)
            if tools and not chat.called:
                chat.called = True
                call = ToolCall(id="1", name="helper", arguments={"word": "sun"})
                found = replace(found, tool_calls=[call])
            return found

        return parsed

    chat = chat_format(loop.tokenizer, str(model))
    chat.called = False
    original = chat.parse
    chat.parse = calling(chat)
    try:
        outputs = await loop.run(dict(PARAMS), **row_of(batch))
    finally:
        chat.parse = original
    assert len(outputs) == 2
    helper, lead = (loop.tokenizer.decode(one.prompt_ids) for one in outputs)
    assert "Spell sun" in helper
    assert "Lead." in lead


TEAM = '''
from hud import Environment
from hud.environment import AgentTool

env = Environment("team")


@env.template()
async def helper(word: str):
    """Help with a word."""
    answer = yield f"Spell {word}."
    yield 0.5


@env.template()
async def lead():
    answer = yield "Lead."
    yield 1.0


env.add(AgentTool(helper, name="helper"))
tasks = [lead()]
'''


async def test_what_cannot_be_trained_on_is_refused(tmp_path, model, sampler):
    cfg = config(tmp_path, model)
    batch = rows_of(tmp_path, letters.tasks[:1], model, cfg)
    loop = loop_of(cfg, model, sampler)
    with pytest.raises(UsageError, match="cut the distribution"):
        await loop.run({**PARAMS, "top_p": 0.9}, **row_of(batch))
    with pytest.raises(UsageError, match="names no task"):
        await loop.run(dict(PARAMS), raw_prompt=[], extra_info={})


def test_the_exported_file_has_verls_columns(tmp_path):
    written, left_out = write_parquet(Taskset("letters", letters.tasks), tmp_path / "a.parquet")
    assert (written, left_out) == (4, [])
    rows = parquet.read_table(tmp_path / "a.parquet").to_pylist()
    assert rows[1] == {
        "data_source": "letters",
        "prompt": [{"role": "user", "content": "Write sun with different letters."}],
        "ability": "agent",
        "reward_model": {"style": "rule", "ground_truth": ""},
        "extra_info": {
            "index": 1,
            "split": "train",
            "hud": {
                "env": "letters",
                "id": "different",
                "args": '{"word":"sun"}',
                "slug": letters.tasks[1].slug,
            },
        },
        "agent_name": "hud_agent",
    }


async def test_a_rollout_plays_groups_with_a_model_of_the_platform(tmp_path, model):
    await connect().post("/v2/models/add", {"source": str(model), "name": "tiny"})
    runs, rewards = await HUDRollout("tiny", letters.tasks[:2], group_size=3).rollout()
    assert rewards.shape == (6,)
    assert rewards.dtype == torch.float32
    assert [run.reward for run in runs] == pytest.approx(rewards.tolist())
    assert [run.group_id == runs[0].group_id for run in runs] == [True] * 3 + [False] * 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, rewards = await HUDRollout("tiny", [letters.broken(word="red")], group_size=2).rollout()
    assert rewards.isnan().all()
