"""Gymnasium's games, as released, as environments: `scripts/setup-integration gymnasium`."""

import pytest

pytest.importorskip("gymnasium", reason="scripts/setup-integration gymnasium")

import gymnasium
import numpy as np
from gymnasium import spaces

from hud import Taskset
from hud.agents import ScriptedAgent
from hud.errors import UsageError
from hud.trace import ToolCall
from hud_integrations.gymnasium import GymnasiumEnvironment

LAKE = ("left", "down", "right", "up")
WAY = ["down", "down", "right", "right", "down", "right"]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path))


def lake(**settings):
    return GymnasiumEnvironment("FrozenLake-v1", actions=LAKE, is_slippery=False, **settings)


async def played(task, actions):
    """Return the run of a script, and the texts of its tool results."""
    texts = []

    async def play(run):
        texts.append(run.prompt_text)
        for place, action in enumerate(actions):
            call = ToolCall(id=str(place), name="act", arguments={"action": action})
            texts.append((await run.call_tool(call)).text)
        return "done"

    job = await task.run(ScriptedAgent(play))
    return job.runs[0], texts


async def test_a_way_over_the_lake_is_worth_one_and_none_is_worth_nothing():
    env = lake()
    run, texts = await played(env.episode(seed=3), WAY)
    assert run.reward == 1.0
    assert "[S]FFF" in texts[0], "the player's place is marked"
    assert "S[F]FF" not in texts[1]
    assert texts[-1].endswith("Reward: 1\nThe game is over.")
    assert run.grade.info == {"return": 1.0, "steps": 6, "ended": "terminated"}
    run, _ = await played(env.episode(seed=3), [])
    assert run.reward == 0.0
    run, texts = await played(env.episode(seed=3), ["down", "right", "up"])
    assert run.reward == 0.0
    assert "The game is over." in texts[-1]
    assert not texts[-1].startswith("Observation"), "a tool error, without another step"


async def test_runs_play_games_of_their_own_and_a_seed_begins_one_game():
    env = GymnasiumEnvironment("Blackjack-v1", returns=(-1.0, 1.0))
    tasks = [env.episode(seed=seed) for seed in range(20)]

    async def stick(run):
        await run.call_tool(ToolCall(id="1", name="act", arguments={"action": 0}))
        return run.prompt_text

    first, second = [
        await Taskset("cards", tasks).run(ScriptedAgent(stick), max_concurrent=20) for _ in range(2)
    ]
    assert [run.trace.content for run in first.runs] == [run.trace.content for run in second.runs]
    assert [run.reward for run in first.runs] == [run.reward for run in second.runs]
    assert len({run.trace.content for run in first.runs}) > 10
    assert {run.reward for run in first.runs} == {0.0, 0.5, 1.0}


async def test_the_schema_is_that_of_the_space_and_other_actions_are_tool_errors():
    (spec,) = lake().tool_specs
    assert spec.parameters["properties"]["action"]["enum"] == list(LAKE)
    (spec,) = GymnasiumEnvironment("Taxi-v4").tool_specs
    action = spec.parameters["properties"]["action"]
    assert (action["type"], action["minimum"], action["maximum"]) == ("integer", 0, 5)
    run, texts = await played(lake().episode(), ["north", "down"])
    assert "Reward" not in texts[1]
    assert "Reward: 0" in texts[2]
    assert run.grade.info["steps"] == 1


class Echo(gymnasium.Env):
    """Pays for the letters of a text that were asked for."""

    action_space = spaces.Text(max_length=8, charset="abc")
    observation_space = spaces.Dict({"wanted": spaces.Text(3), "at": spaces.Box(0, 1, (2,))})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.wanted = (options or {}).get("wanted", "a")
        return {"wanted": self.wanted, "at": np.array([0.123456, 1], dtype=np.float32)}, {}

    def step(self, action):
        return "bye", float(action == self.wanted), True, False, {}


class Reach(Echo):
    action_space = spaces.Box(-1, 1, (2,))

    def step(self, action):
        assert action.dtype == np.float32
        return action, float(action.sum()), False, action.sum() < 0, {}


async def test_texts_and_vectors_are_actions_and_options_reach_the_reset():
    env = GymnasiumEnvironment(Echo, instructions="Say what is wanted.")
    assert env.name == "echo"
    run, texts = await played(env.episode(wanted="cab"), ["xyz", "cab"])
    assert texts[0].startswith("Say what is wanted.")
    assert "wanted: cab, at: [0.1235, 1.0]" in texts[0]
    assert "is no action" in texts[1]
    assert run.reward == 1.0
    env = GymnasiumEnvironment(Reach, returns=(0.0, 4.0), show=lambda seen: f"at {seen}")
    run, texts = await played(env.episode(), [[1, 1], [3, 0], [1], [-1, 0]])
    assert run.reward == 0.25
    assert run.grade.info["ended"] == "truncated"
    assert "Observation: at [1. 1.]" in texts[1]
    assert all("no action" in text for text in texts[2:4])


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda: GymnasiumEnvironment("NoSuchGame-v9"), "no game 'NoSuchGame-v9'"),
        (lambda: GymnasiumEnvironment("FrozenLake-v1", actions=("a", "b")), "2 names of actions"),
        (lambda: GymnasiumEnvironment("Blackjack-v1", returns=(1, 1)), "worst below best"),
    ],
)
def test_what_cannot_be_played_is_refused(made, reason):
    with pytest.raises(UsageError, match=reason):
        made()
