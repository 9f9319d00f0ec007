"""An improvement from its measurement to its report: promoted rungs, budgets, and one that is stopped and repeated."""

import pytest
from benchmarks.conventions.marked_words import HIDDEN, WORDS, make_policy, splits
from benchmarks.conventions.reflector import Server

from hud.agents.agent_forms import as_agent
from hud.agents.agent_kinds import SERVED
from hud.client import connect, disconnect
from hud.errors import UsageError
from hud.eval import StopSignal
from hud.train.client import TrainingClient
from hud.train.improvement.config import ImproveConfig
from hud.train.improvement.ladder import improve
from hud.train.monitoring.progress import Reporter

PICKED = WORDS[:30]


class Notes(Reporter):
    """Keeps notes, and stops the improvement at one of them."""

    def __init__(self, stop_at=None):
        self.notes, self.stop_at, self.stop = [], stop_at, StopSignal()

    def note(self, text):
        self.notes.append(text)
        if self.stop_at is not None and text.startswith(self.stop_at):
            self.stop.request()


@pytest.fixture
async def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    signs = (HIDDEN, "#", "*")
    await make_policy("writer", tmp_path, epochs=12, words=PICKED, signs=signs)
    yield tmp_path
    disconnect(tmp_path)


def config(**values):
    settings = {"budget": "1500rollouts", "max_tokens": 12, "max_turns": 1, "eval_group": 3}
    small = {"measured_tasks": 8, "steps_at_once": 1, "reflector": "stand-in", "lr": 1e-4}
    return ImproveConfig(model="writer", **(settings | small | values))


@pytest.mark.slow
async def test_a_hidden_convention_is_promoted_by_its_prompt_within_the_budget(home):
    tasks, held_out = splits(14, 12, words=PICKED)[:2]
    with Server() as server:
        settings = {"model": "stand-in", "base_url": server.url, "api_key": "none"}
        arguments = {"tasks": tasks, "held_out": held_out}
        stopped = Notes(stop_at="measured on 8 training tasks")
        first = await improve(
            config(),
            reflector=as_agent(SERVED, settings),
            reporter=stopped,
            stop=stopped.stop,
            **arguments,
        )
        assert (first.finished, first.rungs, first.note) == (
            False,
            [],
            "Stopped; the same command goes on.",
        )
        again = Notes()
        report = await improve(
            config(), reflector=as_agent(SERVED, settings), reporter=again, **arguments
        )
    assert report.run_id == first.run_id
    assert again.notes[0].startswith("Going on with the improvement")
    assert report.standing == first.standing, "it is measured once"
    assert report.finished
    assert report.promoted[0] == "prompt"
    assert [rung.name for rung in report.rungs] == ["prompt", "imitate", "reinforce"]
    assert report.spent["rollouts"] <= 1500
    measured = report.spent["rollouts"] - sum(rung.spent["rollouts"] for rung in report.rungs)
    assert measured == 2 * 64, "at the start, and after the promotion"
    nodes = await connect().get("/v2/models/writer/checkpoints")
    (head,) = [node for node in nodes if node["is_active"]]
    assert head["system_prompt"] == f"Write the word between {HIDDEN} and {HIDDEN}."
    trained = [rung for rung in report.rungs if rung.model is not None]
    for rung in trained:
        nodes = await connect().get(f"/v2/models/{rung.model}/checkpoints")
        assert {node["system_prompt"] for node in nodes} <= {head["system_prompt"]}

    repeated = await improve(config(), **arguments)
    assert repeated == report


@pytest.mark.slow
async def test_a_budget_that_holds_no_measurement_is_refused(home):
    tasks, held_out = splits(14, 12, words=PICKED)[:2]
    arguments = {"tasks": tasks, "held_out": held_out}
    with pytest.raises(UsageError, match="does not hold the measurement of 64 rollouts"):
        await improve(config(budget="63rollouts"), **arguments)
    with pytest.raises(UsageError, match="--hour-price"):
        await improve(config(budget="5usd"), **arguments)
    tight = await improve(config(budget="100rollouts"), **arguments)
    assert tight.spent["rollouts"] == 64
    assert [rung.outcome for rung in tight.rungs] == ["skipped"] * 3
    assert tight.promoted == []


@pytest.mark.slow
async def test_a_teacher_with_another_tokenizer_is_refused_before_anything_is_played(home):
    sizes = {"hidden": 16, "layers": 1, "heads": 2, "kv_heads": 1}
    body = {"name": "other", "texts": ["other words"] * 3, "sizes": sizes}
    await connect().post("/v2/models/create", body)
    jobs = (await connect().get("/v2/jobs"))["items"]
    tasks, held_out = splits(14, 12, words=PICKED)[:2]
    with pytest.raises(UsageError, match="another tokenizer"):
        await improve(config(teacher="other"), tasks=tasks, held_out=held_out)
    assert (await connect().get("/v2/jobs"))["items"] == jobs
    await TrainingClient("writer").open()  # The lease is free.
