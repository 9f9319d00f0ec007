"""Programs, and agents behind HTTP, play with the policy in training: its turns through them are what it learns from."""

from pathlib import Path

import pytest

from hud import Environment
from hud.client import connect, disconnect
from hud.errors import UsageError
from hud.eval import Taskset
from hud.train.config import TrainConfig, make_config
from hud.train.loop import train

PROGRAM = Path(__file__).parents[2] / "agents" / "programs" / "fake_program.py"
COMMAND = f"/usr/bin/python3 {PROGRAM} {{prompt_file}}"
SMALL = {"group": 4, "tasks_per_step": 1, "max_tokens": 8, "max_turns": 2, "lr": 1e-2}

env = Environment("vowels")


@env.template()
async def say(word: str):
    answer = yield f"say {word}"
    yield min(1.0, len(answer) / 30)


@pytest.fixture
async def policy(tmp_path, monkeypatch):
    home = tmp_path / "home"
    monkeypatch.setenv("HUD_HOME", str(home))
    monkeypatch.setenv("HUD_PROGRAMS", "")
    monkeypatch.delenv("HUD_API_URL", raising=False)
    sizes = {"vocab_size": 300, "hidden": 32, "layers": 1, "max_context": 128}
    body = {"name": "tiny", "texts": ["say red green blue", "aeiou"] * 3, "sizes": sizes}
    await connect().post("/v2/models/create", body)
    yield "tiny"
    disconnect(home)


async def test_a_policy_learns_from_the_turns_of_a_program(policy):
    config = TrainConfig(
        model=policy,
        agent="harness",
        agent_settings={"command": COMMAND},
        steps=2,
        **SMALL,
    )
    report = await train(config, tasks=Taskset("vowels", [say(word="red")]))
    assert report.finished
    for step in report.history:
        metrics = step["metrics"]
        assert metrics["runs:sum"] == metrics["samples:sum"] == 4
        assert metrics["action_tokens:sum"] == metrics["sampled_tokens:sum"] > 0
        # The turns are of the newest weights, and their ids are those that were sampled.
        assert metrics["policy_lag:max"] == 0
        assert metrics["sampler_gap:max"] < 1e-4


async def test_an_agent_that_is_no_program_is_refused_before_any_run(policy):
    config = TrainConfig(model=policy, agent="nothing", **SMALL)
    with pytest.raises(UsageError, match="no program"):
        await train(config, tasks=Taskset("vowels", [say(word="red")]))


async def test_a_program_that_is_not_installed_is_refused_before_any_run(policy):
    config = TrainConfig(
        model=policy, agent="harness", agent_settings={"command": "no-such-program"}, **SMALL
    )
    with pytest.raises(UsageError, match="no program 'no-such-program'"):
        await train(config, tasks=Taskset("vowels", [say(word="red")]))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"agent_settings": {"command": "true"}}, "name it with agent"),
        ({"agent": "codex", "system_prompt": "Be brief."}, "leave system_prompt out"),
    ],
)
def test_settings_that_a_program_does_not_have_are_refused(settings, problem):
    with pytest.raises(UsageError, match=problem):
        make_config({"model": "tiny", **settings})


@env.template()
async def sing(word: str):
    answer = yield f"say {word}"
    yield sum(letter in "aeiou" for letter in answer) / max(1, len(answer))


@pytest.mark.slow
@pytest.mark.parametrize("shuffled", [False, True], ids=["learns", "null"])
async def test_held_out_reward_rises_through_a_program_and_not_by_chance(policy, shuffled):
    config = TrainConfig(
        model=policy,
        agent="harness",
        agent_settings={"command": COMMAND},
        **{**SMALL, "tasks_per_step": 2, "group": 8},
        steps=15,
        eval_every=0,
        eval_group=8,
        max_concurrent=4,
        dynamic_sampling=0,
        shuffle_advantages=shuffled,
    )
    tasks = Taskset("trained", [sing(word=word) for word in ("red", "green", "blue")])
    held_out = Taskset("held-out", [sing(word=word) for word in ("yellow", "black", "white")])
    report = await train(config, tasks=tasks, held_out=held_out)
    before, after = report.scores[0], report.scores[-1]
    if shuffled:
        assert after.mean < before.high + 0.1
    else:
        assert after.low > before.high
