"""TRL's `GRPOTrainer`, as released, over our tasks: `scripts/setup-integration trl`."""

import inspect
import warnings

import pytest

pytest.importorskip("trl", reason="scripts/setup-integration trl")

import torch
from datasets import Dataset
from tests.engine.template_folders import template_folder
from tests.integrations import letters
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import get_json_schema
from trl import GRPOConfig, GRPOTrainer

from hud.agents.types import AgentConfig
from hud.client import connect
from hud.engine.tiny_model import create_tiny
from hud.environment import Environment
from hud.errors import UsageError
from hud.eval import Taskset
from hud.trace import Sample
from hud_integrations.shared.event_loop import wait_for
from hud_integrations.trl import HudSpec, hud_reward
from hud_integrations.trl.live_policy import LivePolicy, merged_weights

GROUP = 4
TEXTS = ["Write red with different letters.", "s u n", "abcdefghijklmnopqrstuvwxyz"] * 20
# Every turn is cut off, and the model is asked to go on: three turns, with tokens of ours between them.
THREE_TURNS = AgentConfig(max_steps=3, stop_on=frozenset())


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    there = tmp_path_factory.mktemp("tiny")
    create_tiny(there, TEXTS, vocab_size=400, hidden=32, layers=2, max_context=512)
    return there


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")


def trainer_of(folder, spec, tmp_path, *, model=None, steps=2, **arguments):
    settings = {"temperature": 1.0, "learning_rate": 1e-3} | arguments.pop("settings", {})
    config = GRPOConfig(
        output_dir=str(tmp_path / "trl"),
        per_device_train_batch_size=2 * GROUP,
        num_generations=GROUP,
        max_completion_length=6,
        max_steps=steps,
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        **settings,
    )
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    return GRPOTrainer(
        model=model or AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        processing_class=tokenizer,
        args=config,
        **{"train_dataset": spec.train_dataset, "reward_funcs": spec.reward_funcs, **arguments},
    )


def prompts_of(spec, count=2):
    """Return prompts as a trainer hands them over: each repeated, in order."""
    return [row["prompt"] for row in list(spec.train_dataset)[:count] for _ in range(GROUP)]


def logprobs_of(model, prompt, completion):
    ids = torch.tensor([prompt + completion])
    with torch.no_grad():
        logits = model(ids).logits[0, len(prompt) - 1 : -1].float()
    return torch.log_softmax(logits, -1).gather(1, ids[0, len(prompt) :, None])[:, 0]


def recorded(trace_id):
    """Return the samples of a recorded run."""
    trace = wait_for(connect().get(f"/v2/trace/{trace_id}/full"))["trace"]
    return [Sample.model_validate(step["sample"]) for step in trace["steps"] if step.get("sample")]


def recorded_job():
    """Return the one recorded job, and its runs."""
    (job,) = wait_for(connect().get("/v2/jobs"))["items"]
    return job, wait_for(connect().get(f"/v2/jobs/{job['id']}/traces"))["items"]


def test_trained_ids_are_sampled_ids_and_logprobs_are_those_of_the_trainer(folder, tmp_path):
    spec = HudSpec(Taskset("letters", letters.tasks), config=THREE_TURNS)
    trainer = trainer_of(folder, spec, tmp_path, rollout_func=spec.rollout_func)
    rows = spec.rollout_func(prompts_of(spec), trainer)
    assert len(rows["prompt_ids"]) == 2 * GROUP
    turns = [len(recorded(trace_id)) for trace_id in rows["trace_id"]]
    assert max(turns) == 3, "a turn that ends by itself ends the run"
    for prompt, completion, logprobs, mask, trace_id in zip(
        rows["prompt_ids"], rows["completion_ids"], rows["logprobs"], rows["env_mask"], rows["trace_id"],
        strict=True,
    ):  # fmt: skip
        samples = recorded(trace_id)
        assert prompt == samples[0].prompt_token_ids
        assert prompt + completion == samples[-1].prompt_token_ids + samples[-1].output_token_ids
        drawn = [place for place, ours in enumerate(mask) if ours]
        assert [completion[place] for place in drawn] == [
            token for sample in samples for token in sample.output_token_ids
        ]
        theirs = logprobs_of(trainer.model, prompt, completion)
        assert max(abs(theirs[place] - logprobs[place]) for place in drawn) < 1e-4
        assert all(logprobs[place] == 0 for place in set(range(len(mask))) - set(drawn))


def test_a_training_is_a_job_whose_groups_are_whole(folder, tmp_path):
    spec = HudSpec(Taskset("letters", letters.tasks))
    trainer = trainer_of(folder, spec, tmp_path, rollout_func=spec.rollout_func)
    before = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    trainer.train()
    assert any(
        not torch.equal(before[name], now) for name, now in trainer.model.state_dict().items()
    )
    job, runs = recorded_job()
    assert (job["name"], job["status"]) == ("letters (trl)", "completed")
    assert len(runs) == 2 * 2 * GROUP
    groups = {}
    for run in runs:
        groups.setdefault(run["group_id"], []).append(run)
    assert all(
        len(group) == GROUP and len({run["slug"] for run in group}) == 1
        for group in groups.values()
    )


def test_rollouts_follow_the_trainers_weights(folder, tmp_path):
    spec = HudSpec(Taskset("letters", letters.tasks))
    trainer = trainer_of(folder, spec, tmp_path, rollout_func=spec.rollout_func)
    spec.rollout_func(prompts_of(spec), trainer)
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter.mul_(1.05)
    rows = spec.rollout_func(prompts_of(spec), trainer)
    for prompt, completion, logprobs in zip(
        rows["prompt_ids"], rows["completion_ids"], rows["logprobs"], strict=True
    ):
        assert torch.allclose(
            logprobs_of(trainer.model, prompt, completion), torch.tensor(logprobs), atol=1e-4
        )


def test_what_a_grader_broke_enters_no_mean(folder, tmp_path):
    tasks = [letters.different(word="red"), letters.broken(word="sun")]
    spec = HudSpec(Taskset("letters", tasks))
    trainer = trainer_of(folder, spec, tmp_path, rollout_func=spec.rollout_func)
    rows = spec.rollout_func(prompts_of(spec), trainer)
    rewards = hud_reward([], [], run_reward=rows["run_reward"])
    assert all(reward is not None for reward in rewards[:GROUP])
    assert rewards[GROUP:] == [None] * GROUP
    trainer.train()


def test_trls_own_loop_calls_tools_and_the_grader_gets_the_last_text(folder, tmp_path):
    spec = HudSpec(Taskset("letters", letters.tasks), group=GROUP)
    episode = spec.environment_factory()
    key = spec.train_dataset[0]["hud_task"]
    assert episode.reset(hud_task=key, prompt=[]) == "Write red with different letters."
    schema = get_json_schema(episode.spell)["function"]
    assert (schema["name"], schema["description"]) == ("spell", "Spell a word.")
    assert schema["parameters"]["properties"]["times"]["type"] == "integer"
    assert schema["parameters"]["required"] == ["word"]
    assert episode.spell(word="ab") == "a b"
    assert episode.spell("ab", 2) == "a b a b"
    with pytest.raises(RuntimeError, match="word"):
        episode.spell()
    said = [[{"role": "assistant", "content": "aabb"}]]
    assert hud_reward([""], said, environments=[episode]) == [0.5]
    public = {name for name, _ in inspect.getmembers(episode, inspect.ismethod) if name[0] != "_"}
    assert public == {"reset", "spell"}


@pytest.mark.filterwarnings("ignore")
def test_trl_trains_through_environments(tmp_path):
    spec = HudSpec(Taskset("letters", letters.tasks), group=GROUP)
    folder = template_folder(
        "qwen3"
    )  # TRL's own loop knows the templates of published models alone.
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    trainer = trainer_of(
        folder, spec, tmp_path, model=model, environment_factory=spec.environment_factory
    )
    trainer.train()
    _, runs = recorded_job()
    assert len(runs) == 2 * 2 * GROUP
    assert all(run["reward"] is not None for run in runs)


def test_the_guides_line_works_with_the_reward_alone(folder, tmp_path):
    spec = HudSpec(Taskset("letters", letters.tasks))
    assert spec.prompt_dataset[0]["prompt"][0]["content"] == "Write red with different letters."
    trainer = trainer_of(folder, spec, tmp_path, steps=1, train_dataset=spec.prompt_dataset)
    assert trainer.reward_funcs == [hud_reward]
    trainer.train()
    keys = [row["hud_task"] for row in spec.train_dataset][:2]
    assert hud_reward(["", ""], ["aab", "abc"], hud_task=keys) == [pytest.approx(2 / 3), 1.0]


def test_settings_that_cut_the_distribution_are_refused(folder, tmp_path):
    spec = HudSpec(Taskset("letters", letters.tasks))
    trainer = trainer_of(
        folder, spec, tmp_path, rollout_func=spec.rollout_func, settings={"top_p": 0.9}
    )
    with pytest.raises(UsageError, match="top_p"):
        trainer.train()


def test_prompts_of_no_task_are_refused(folder, tmp_path):
    spec = HudSpec(Taskset("letters", letters.tasks))
    with pytest.raises(UsageError, match="train_dataset"):
        hud_reward(["What is 2 + 2?"], ["4"])
    other = Dataset.from_list([{"prompt": [{"role": "user", "content": "hello"}]}])
    trainer = trainer_of(folder, spec, tmp_path, rollout_func=spec.rollout_func)
    with pytest.raises(UsageError, match="train_dataset"):
        spec.rollout_func(list(other["prompt"]), trainer)
    with pytest.raises(UsageError, match="no tasks"):
        HudSpec([], name="empty")


def test_tasks_of_several_environments_select_their_factory():
    other = Environment("numbers")

    @other.tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @other.template()
    async def total(a: int, b: int):
        answer = yield f"{a} + {b}"
        yield float(answer == str(a + b))

    spec = HudSpec([letters.tasks[0], total(a=1, b=2)], name="both")
    assert set(spec.environment_factory) == {"letters", "numbers"}
    assert list(spec.train_dataset["environment"]) == ["letters", "numbers"]
    episode = spec.environment_factory["numbers"]()
    assert episode.reset(hud_task=spec.train_dataset[1]["hud_task"]) == "1 + 2"
    assert episode.add(a=1, b=2) == "3"
    assert hud_reward([""], ["3"], environments=[episode]) == [1.0]


def test_an_adapter_of_peft_is_sampled_as_it_is_trained(folder):
    peft = pytest.importorskip("peft")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model = peft.get_peft_model(
        model,
        peft.LoraConfig(
            r=4, target_modules=["q_proj", "v_proj", "up_proj"], init_lora_weights=False
        ),
    )
    live = LivePolicy(model, AutoTokenizer.from_pretrained(folder), slots=4)
    try:
        live.refresh("one")
        ids = torch.tensor([5, 6, 7, 8])
        hidden = live.policy.decoder.hidden_packed(
            ids, torch.arange(4), torch.tensor([0, 4], dtype=torch.int32)
        )
        ours = torch.log_softmax(live.policy.decoder.logits(hidden), -1)
        with torch.no_grad():
            theirs = torch.log_softmax(model(ids[None]).logits[0], -1)
        assert torch.allclose(ours, theirs, atol=1e-4)
    finally:
        live.policy.close()
    names = dict(model.get_base_model().named_parameters())
    assert not any("lora" in name for name, _ in merged_weights(model))
    assert len(names) > len(dict(merged_weights(model)))


@pytest.mark.slow
def test_the_reward_rises(folder, tmp_path):
    spec = HudSpec([letters.vowels(word=word) for word in ("red", "sun")], name="vowels")
    trainer = trainer_of(
        folder,
        spec,
        tmp_path,
        steps=40,
        rollout_func=spec.rollout_func,
        settings={"learning_rate": 1e-2},
    )
    rewards = []
    inner = spec.reward_funcs[0]

    def watched(*arguments, **columns):
        found = inner(*arguments, **columns)
        rewards.append(sum(found) / len(found))
        return found

    trainer.reward_funcs = [watched]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.train()
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.2
