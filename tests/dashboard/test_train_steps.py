"""A training run leads to its rollouts, step by step, to its held-out jobs, and to other runs in the same charts."""

from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa
from tests.dashboard.conftest import sign_in
from tests.dashboard.recorded import record
from tests.dashboard.test_search import step_line
from tests.dashboard.test_train import make_model, record_run, score

from hud.eval.results.held_out_scores import Score
from hud_dashboard.pages.train_curves import charts
from hud_platform.access.teams import Teams
from hud_platform.store import tables
from hud_platform.store.ingest import ingest
from hud_platform.store.tables import LOCAL_TEAM
from hud_platform.training.runs import TrainingRuns

START = datetime(2026, 1, 1, tzinfo=UTC)


def metrics(**more):
    return {"rollout_reward:mean": 0.5, "groups_drawn:sum": 2.0, **more}


@pytest.fixture
def trained(platform):
    """A run of two steps over one job of rollouts: a group a step, and a held-out job before and after."""
    model = make_model(platform)
    rollouts = record(
        platform,
        "m training",
        {"first": [0.0, 1.0, 0.5], "second": [0.25, 0.25]},
        purpose="training",
    )
    held_out = [
        record(platform, f"m held-out step {step}", {"h": [step / 2]}, purpose="held_out")
        for step in (0, 2)
    ]
    runs = TrainingRuns(platform.store, model.team_id)
    scores = [score(0, 0.0, job_id=held_out[0]), score(2, 1.0, job_id=held_out[1])]
    run = runs.start(model.id, {"model": "m", "steps": 2}, {"scores": scores, "jobs": [rollouts]})
    for step in (0, 1):
        runs.report(run["id"], step, metrics(), step + 1, None)
    # Ended half a minute into the first step, and into the second.
    with platform.store.begin() as connection:
        for table, key, values in (
            (tables.training_runs, tables.training_runs.c.id == run["id"], {"created_at": START}),
            *(
                (
                    tables.training_metrics,
                    tables.training_metrics.c.step == step,
                    {"created_at": START + timedelta(minutes=step + 1)},
                )
                for step in (0, 1)
            ),
            *(
                (
                    tables.runs,
                    sa.and_(tables.runs.c.slug == slug, tables.runs.c.job_id == rollouts),
                    {"ended_at": START + timedelta(minutes=place, seconds=30)},
                )
                for place, slug in enumerate(("first", "second"))
            ),
        ):
            connection.execute(sa.update(table).where(key).values(**values))
    return run["id"], rollouts, held_out


async def test_a_run_leads_to_its_rollouts_and_nests_its_held_out_jobs(trained, web):
    run, rollouts, held_out = trained
    jobs = (await web.get(f"/train/{run}.json")).json()["jobs"]
    assert [(job["id"], job["step"]) for job in jobs] == [
        (rollouts, None),
        (held_out[0], 0),
        (held_out[1], 2),
    ]
    assert jobs[0]["runs"] == 5
    page = (await web.get(f"/train/{run}")).text
    for job in (rollouts, *held_out):
        assert f'href="/jobs/{job}"' in page
        # And back.
        assert f'href="/train/{run}"' in (await web.get(f"/jobs/{job}")).text


async def test_each_step_shows_its_samples(trained, platform, web):
    run, rollouts, _ = trained
    with platform.store.read() as connection:
        known = sa.select(tables.runs.c.trace_id, tables.runs.c.reward).where(
            tables.runs.c.job_id == rollouts, tables.runs.c.slug == "first"
        )
        traces = {row.reward: row.trace_id for row in connection.execute(known)}
    for reward, answer in ((0.0, "a <b>bad</b> answer"), (1.0, "a good answer")):
        steps = [
            {"source": "user", "messages": [{"role": "user", "content": "the question"}]},
            {"source": "agent", "messages": [], "content": answer},
        ]
        lines = [step_line(traces[reward], number, step) for number, step in enumerate(steps, 1)]
        assert not ingest(platform.store, b"".join(lines), LOCAL_TEAM).damaged
    found = (await web.get(f"/train/{run}/steps/1.json")).json()
    (group,) = found["groups"]
    assert (found["rollouts"], group["slug"], len(group["runs"])) == (3, "first", 3)
    assert group["prompt"] == "the question"
    assert [(one["reward"], one["answer"]) for one in group["samples"]] == [
        (1.0, "a good answer"),
        (0.0, "a <b>bad</b> answer"),
    ]
    page = (await web.get(f"/train/{run}/steps/1")).text
    assert "a good answer" in page
    assert "a &lt;b&gt;bad" in page
    for trace in traces.values():
        assert f'href="/trace/{trace}"' in page
    assert f'href="/train/{run}/steps/2"' in page
    second = (await web.get(f"/train/{run}/steps/2.json")).json()
    assert [group["slug"] for group in second["groups"]] == ["second"]
    assert "no signal" in (await web.get(f"/train/{run}/steps/2")).text


@pytest.mark.slow
async def test_steps_are_listed_and_one_that_is_not_done_is_told(trained, web):
    run, _, _ = trained
    listed = (await web.get(f"/train/{run}/steps.json")).json()["items"]
    assert [row["number"] for row in listed] == [2, 1]
    for number in (0, 3, -1):
        answer = await web.get(f"/train/{run}/steps/{number}")
        assert answer.status_code == 404
        assert "has not finished" in answer.text


@pytest.mark.slow
async def test_another_run_is_drawn_into_the_charts(platform, web):
    model = make_model(platform)
    mine = record_run(platform, model, steps=3, scores=[score(0, 0.1)])
    other = record_run(platform, model, steps=5, scores=[score(5, 0.4)])
    page = (await web.get(f"/train/{mine}?with={other}")).text
    assert f"/train/{mine}/curves/reward.json?with={other}" in page
    found = (await web.get(f"/train/{mine}/curves/reward.json?with={other}")).json()
    assert found["x"] == [0, 1, 2, 3, 4, 5]
    named = {one["name"]: one["values"] for one in found["series"]}
    called = f"m {other[:8]}"
    assert named["held-out"][0] == 0.1
    assert named[f"{called}: held-out"][5] == 0.4
    assert named[f"{called}: training, mean of 5"][4] is not None
    assert named["training"][4] is None
    alone = (await web.get(f"/train/{mine}/curves/reward.json")).json()
    assert alone["x"] == [0, 1, 2, 3]
    unknown = await web.get(f"/train/{mine}/curves/reward.json?with={'0' * 32}")
    assert unknown.status_code == 404


@pytest.mark.slow
async def test_runs_of_another_team_are_not_drawn(keyed):
    theirs = Teams(keyed.store).find_or_create("other").id
    foreign = record_run(keyed, make_model(keyed, name="x", team=theirs))
    mine = record_run(keyed, make_model(keyed, team=Teams(keyed.store).default().id))
    async with sign_in(keyed, "read") as client:
        for place in (
            f"/train/{mine}/curves/reward.json?with={foreign}",
            f"/train/{foreign}/steps",
            f"/train/{foreign}/steps/1",
        ):
            assert (await client.get(place)).status_code == 404, place
        assert foreign not in (await client.get(f"/train/{mine}")).text


def history(**columns):
    count = max(map(len, columns.values()))
    return [
        {"step": step, "metrics": {name: values[step] for name, values in columns.items()}}
        for step in range(count)
    ]


def test_charts_that_say_nothing_are_told_instead_of_drawn():
    drawn, quiet = charts(
        history(
            **{
                "policy_lag:mean": [0.0] * 3,
                "policy_lag:max": [0.0] * 3,
                "sampler_k3:mean": [1e-13, 2e-13, 5e-14],
                "sampler_gap:mean": [2e-7, 3e-7, 1e-7],
                "sampler_gap_p99:max": [1e-6, 2e-6, 3e-6],
                "learning_rate": [1e-3, 9e-4, 8e-4],
                "grad_norm:mean": [0.1, 0.2, 0.3],
                "action_tokens:sum": [100.0, 120.0, 90.0],
                "runs:sum": [10.0, 10.0, 10.0],
                "samples:sum": [20.0, 30.0, 20.0],
                "clip_fraction:mean": [0.0, 0.01, 0.02],
                "reference_kl:mean": [0.0, 0.1, 0.2],
            }
        )
    )
    assert drawn == ["reward", "length", "gradient", "learning_rate", "clip", "reference"]
    assert {one["name"]: one["why"] for one in quiet} == {
        "kl": "at most 2e-13, which is rounding",
        "gap": "at most 3e-06, which is rounding",
        "lag": "0 at every step",
    }


def test_a_lag_that_there_is_and_a_constant_that_is_not_are_told_apart():
    drawn, quiet = charts(history(**{"policy_lag:mean": [0.0, 1.0], "learning_rate": [1e-4, 1e-4]}))
    assert drawn == ["reward", "lag"]
    assert [(one["name"], one["why"]) for one in quiet] == [
        ("learning_rate", "0.0001 at every step")
    ]
    # After one step nothing is known yet: all is drawn.
    assert charts(history(**{"learning_rate": [1e-4]})) == (["reward", "learning_rate"], [])


def test_a_supervised_run_has_a_chart_of_rewards_with_held_out_scores_alone():
    steps = history(**{"learning_rate": [1e-4], "epoch": [1.0]})
    assert charts(steps)[0] == ["learning_rate"]
    assert charts(steps, [Score(0, 0.5, 0.4, 0.6, runs=8, failed=0)])[0] == [
        "reward",
        "learning_rate",
    ]


@pytest.mark.slow
async def test_completion_length_is_that_of_a_rollout_and_of_a_turn(platform, web):
    model = make_model(platform)
    runs = TrainingRuns(platform.store, model.team_id)
    run = runs.start(model.id, {"model": "m"}, {})["id"]
    for step, tokens in enumerate((80.0, 160.0)):
        measured = {"action_tokens:sum": tokens, "runs:sum": 8.0, "samples:sum": 16.0}
        runs.report(run, step, measured, step + 1, None)
    found = (await web.get(f"/train/{run}/curves/length.json")).json()
    assert {one["name"]: one["values"] for one in found["series"]} == {
        "a rollout": [10.0, 20.0],
        "a turn": [5.0, 10.0],
    }
