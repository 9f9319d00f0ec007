"""Outcomes become known after a run: they are only added, and its reward follows from them by a rule with a version."""

import asyncio

import pytest
from pydantic import ValidationError

import hud.client
from hud import Environment, record_outcome
from hud.cli.main import run as run_hud
from hud.client import connect
from hud.client.recording import MemoryRecorder
from hud.errors import NotFoundError, UsageError
from hud.eval import Taskset
from hud.trace import AgentStep, Sample
from hud.trace.sampled.token_columns import pack_ids, pack_logprobs
from hud_platform.store import outcomes as stored_outcomes
from hud_platform.store import tables
from hud_platform.store.ingest import ingest
from hud_platform.store.outcomes import GradeRule, NewestRule, SumRule, reward_by
from hud_platform.store.trainer_logprobs import ComputedRun, PassWeights, record_pass

env = Environment("desk")


@env.template()
async def answer(word: str = "a"):
    said = yield f"Say {word}."
    yield 1.0 if said == word else 0.0


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    yield tmp_path
    hud.client.disconnect(tmp_path)


def played():
    async def agent(run):
        run.trace.content = "a"

    return asyncio.run(Taskset("desk", [answer(word="a")]).run(agent))


def ask(method, path, body=None):
    client = connect()
    call = getattr(client, method)
    return asyncio.run(call(path) if body is None else call(path, body))


def reward_of(trace):
    row = ask("get", f"/v2/trace/{trace}")
    return row["reward"], row["reward_rule"]


@pytest.mark.parametrize(
    ("rule", "graded", "outcomes", "reward"),
    [
        (GradeRule(), 0.5, {"reward": 1.0}, 0.5),
        (GradeRule(), None, {"reward": 1.0}, 1.0),
        (GradeRule(), None, {"resolved": 1.0}, None),
        (NewestRule(name="resolved"), 0.5, {"resolved": 0.0}, 0.0),
        (NewestRule(name="resolved"), 0.5, {"other": 0.0}, 0.5),
        (SumRule(weights={"resolved": 2.0, "grade": 0.5}), 1.0, {"resolved": 1.0}, 2.5),
        (SumRule(weights={"resolved": 2.0, "grade": 0.5}), None, {"resolved": 1.0}, 2.0),
        (SumRule(weights={"resolved": 2.0}), 0.25, {"other": 1.0}, 0.25),
        (SumRule(weights={"a": 1e100, "b": 1e100}), None, {"a": 1e100, "b": 1e100}, None),
        (SumRule(weights=dict.fromkeys("abc", 1e100)), 1e300, dict.fromkeys("abc", 1e208), None),
    ],
)
def test_rules(rule, graded, outcomes, reward):
    assert reward_by(rule, graded, outcomes) == reward


def test_an_outcome_is_added_and_the_rule_of_the_job_makes_the_reward(home, capsys):
    job = played()
    trace = job.runs[0].trace_id
    assert asyncio.run(record_outcome(trace, "resolved", 0.0, source="mail")) == 1.0
    assert reward_of(trace) == (1.0, 0)
    assert run_hud(["reward-rule", "--newest", "resolved", "--job", job.id[:10]]) == 0
    assert "version 1: the newest resolved" in capsys.readouterr().out
    assert reward_of(trace) == (0.0, 1)
    assert ask("get", f"/v2/jobs/{job.id}")["reward"] == 0.0
    assert run_hud(["outcome", trace[:10], "--name", "resolved", "--value", "0.5"]) == 0
    assert "reward  0.5" in capsys.readouterr().out
    assert run_hud(["reward-rule", "--sum", "resolved=2", "--sum", "grade=1"]) == 0
    assert reward_of(trace) == (0.5, 1), "the job's own rule comes before that of all"
    assert run_hud(["reward-rule", "--sum", "resolved=2", "--sum", "grade=1", "--job", job.id]) == 0
    assert reward_of(trace) == (2.0, 3)
    assert run_hud(["reward-rule", "--grade", "--job", job.id]) == 0
    assert reward_of(trace) == (1.0, 4)
    listed = ask("get", f"/v2/trace/{trace}/outcomes")
    assert [(one["name"], one["value"], one["source"]) for one in listed["items"]] == [
        ("resolved", 0.0, "mail"),
        ("resolved", 0.5, None),
    ]
    assert run_hud(["outcome", trace]) == 0
    assert "resolved 0, by mail" in capsys.readouterr().out
    assert len(ask("get", "/v2/reward-rules")["items"]) == 4


def test_a_superseded_outcome_counts_no_more(home):
    job = played()
    trace = job.runs[0].trace_id
    ask("post", "/v2/reward-rules", {"rule": {"kind": "newest", "name": "resolved"}})
    good = ask("post", f"/v2/trace/{trace}/outcome", {"name": "resolved", "value": 0.75})
    wrong = ask("post", f"/v2/trace/{trace}/outcome", {"name": "resolved", "value": 0.0})
    body = {"name": "note", "value": 0.0, "supersedes": wrong["id"]}
    assert ask("post", f"/v2/trace/{trace}/outcome", body)["reward"] == good["value"]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"name": "", "value": 1.0}, UsageError),
        ({"name": "a", "value": 1e300}, UsageError),
        ({"name": "a", "value": 1.0, "supersedes": "b" * 32}, NotFoundError),
    ],
)
def test_what_is_no_outcome_is_refused(home, body, error):
    trace = played().runs[0].trace_id
    with pytest.raises(error):
        ask("post", f"/v2/trace/{trace}/outcome", body)
    with pytest.raises(NotFoundError):
        ask("post", f"/v2/trace/{'c' * 32}/outcome", {"name": "a", "value": 1.0})


def test_a_second_report_of_an_end_changes_no_grade(home):
    trace = "my-run"
    graded = {
        "status": "completed",
        "reward": 1.0,
        "evaluation_result": {"score": 1.0, "content": "4"},
    }
    ask("post", f"/v2/trace/{trace}/exit", graded)
    first = ask("get", f"/v2/trace/{trace}")
    ask("post", f"/v2/trace/{trace}/exit", graded)
    assert ask("get", f"/v2/trace/{trace}/outcomes")["items"] == []
    other = {"status": "error", "error": "late", "reward": 0.0, "evaluation_result": {"score": 0.0}}
    ask("post", f"/v2/trace/{trace}/exit", other)
    again = ask("get", f"/v2/trace/{trace}")
    same = ("reward", "status", "error", "grade", "content", "ended_at")
    assert {name: again[name] for name in same} == {name: first[name] for name in same}
    (outcome,) = ask("get", f"/v2/trace/{trace}/outcomes")["items"]
    assert (outcome["name"], outcome["value"], outcome["source"]) == ("reward", 0.0, "exit")


def test_a_reward_without_an_evaluation_is_kept_and_a_later_grade_goes_before_it(home):
    ask("post", "/v2/trace/r/exit", {"reward": 0.5})
    assert reward_of("r") == (0.5, 0)
    # The client's word for a run without a grade.
    ask("post", "/v2/trace/s/exit", {"reward": 0.0})
    assert reward_of("s") == (None, None)
    ask("post", "/v2/trace/r/exit", {"reward": 1.0, "evaluation_result": {"score": 1.0}})
    assert reward_of("r")[0] == 1.0


def test_a_recorder_that_ships_again_leaves_the_rule_s_reward(home):
    store = connect().embedded.parts.store
    recorder = MemoryRecorder()
    job = played()
    trace = job.runs[0].trace_id
    recorder.run_ended(job.runs[0])
    lines = recorder.take()
    ask("post", "/v2/reward-rules", {"rule": {"kind": "newest", "name": "resolved"}})
    asyncio.run(record_outcome(trace, "resolved", 0.25))
    ingest(store, lines, tables.LOCAL_TEAM)
    assert reward_of(trace) == (0.25, 1)
    ask("post", "/v2/reward-rules", {"rule": {"kind": "grade"}})
    assert reward_of(trace) == (1.0, 2), "the grade's own reward is not lost"


def test_a_training_pass_stores_the_reward_that_it_used_and_its_rule(home):
    async def agent(run):
        sample = Sample(prompt_token_ids=[1], output_token_ids=[2, 3], output_logprobs=[-1.0, -2.0])
        run.record(AgentStep(content="a", sample=sample))
        run.trace.content = "a"

    job = asyncio.run(Taskset("desk", [answer(word="a")]).run(agent))
    trace = job.runs[0].trace_id
    ask("post", "/v2/reward-rules", {"rule": {"kind": "newest", "name": "resolved"}})
    used = asyncio.run(record_outcome(trace, "resolved", 0.25))
    turn = pack_ids([2, 3]), pack_logprobs([-1.0, -2.0])
    store = connect().embedded.parts.store
    weights = PassWeights("e" * 32, 1, None)
    record_pass(store, tables.LOCAL_TEAM, weights, [ComputedRun(trace, [turn], used)])
    ask("post", f"/v2/trace/{trace}/outcome", {"name": "resolved", "value": 1.0})
    (row,) = store.rows(tables.trainer_logprobs.select())
    assert (row.reward, row.reward_rule) == (0.25, 1)


@pytest.mark.parametrize(
    "weights",
    [{"a": float("inf")}, {"a": float("nan")}, {"a" * 201: 1.0}, {str(n): 1.0 for n in range(101)}],
)
def test_a_rule_has_a_size_and_finite_weights(weights):
    with pytest.raises(ValidationError):
        SumRule(weights=weights)


def test_outcomes_of_a_run_have_a_number_and_a_size(home, monkeypatch):
    monkeypatch.setattr(stored_outcomes, "MOST_OUTCOMES", 2)
    job = played()
    path = f"/v2/trace/{job.runs[0].trace_id}/outcome"
    outcome = {"name": "resolved", "value": 1.0}
    with pytest.raises(UsageError, match="200 characters"):
        ask("post", path, {**outcome, "source": "x" * 201})
    for _ in range(2):
        ask("post", path, outcome)
    with pytest.raises(UsageError, match="2 outcomes, which are the most"):
        ask("post", path, outcome)
