"""Routes to a baseline or a promotion that its measurements do not carry: each is refused."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from tests.security.server import AttackedServer, bearer

from hud.errors import UsageError
from hud.eval.results.promotion_gate import Gate
from hud.trace import new_id
from hud_dashboard.human_baseline.jobs import group_of, open_job, scores
from hud_platform.routes.traces import router as traces
from hud_platform.store import tables
from hud_platform.store.reporting import enter_job
from hud_platform.store.tables import LOCAL_TEAM


@pytest.fixture
def server(tmp_path):
    return AttackedServer(tmp_path / "home")


@pytest.mark.parametrize("loss", [-2.0, -0.001, float("nan"), float("inf")])
def test_a_gate_of_a_negative_or_no_number_for_the_gain_is_refused(loss):
    with pytest.raises(UsageError, match="min_gain is a gain, at least 0"):
        Gate(min_gain=loss)


async def test_a_run_key_does_not_write_into_another_persons_baseline(server):
    store = server.parts.store
    taskset = {"id": new_id(), "name": "words", "version": 1}
    job = open_job(store, LOCAL_TEAM, "victim", taskset)
    run = bearer(server.key(scope="run"))
    trace = new_id()
    entered = {
        "job_id": job,
        "group_id": group_of(job, "one"),
        "task_slug": "one",
        "model": "human",
    }
    place = f"{traces.prefix}/{trace}"
    answer = await server.ask("POST", f"{place}/enter", run, entered)
    assert answer.status == 404
    graded = {
        "reward": 0.0,
        "evaluation_result": {"reward": 0.0},
        "metadata": {"user_id": "victim"},
    }
    await server.ask("POST", f"{place}/exit", run, graded)
    assert (
        await server.ask("POST", f"{traces.prefix}/job/{job}/enter", run, {"name": "x"})
    ).status == 404
    assert scores(store, LOCAL_TEAM, taskset["id"]) == {}


async def test_a_job_made_in_advance_does_not_take_the_place_of_a_persons_baseline(
    server, tmp_path
):
    """The id of a baseline's job followed from team, person, taskset and version: a client could make it first."""
    store, taskset = server.parts.store, {"id": new_id(), "name": "words", "version": 1}
    first, second = (open_job(store, LOCAL_TEAM, "victim", taskset) for _ in range(2))
    assert first == second, "a person has one job for a version"
    assert open_job(store, LOCAL_TEAM, "other", taskset) != first
    assert open_job(store, LOCAL_TEAM, "victim", taskset | {"version": 2}) != first
    elsewhere = AttackedServer(tmp_path / "elsewhere").parts.store
    assert open_job(elsewhere, LOCAL_TEAM, "victim", taskset) != first, "nobody can compute it"


async def test_a_run_key_does_not_change_a_run_of_a_baseline(server):
    store = server.parts.store
    taskset = {"id": new_id(), "name": "words", "version": 1}
    job, trace = open_job(store, LOCAL_TEAM, "victim", taskset), new_id()
    with store.begin() as connection:
        row = {
            "trace_id": trace,
            "team_id": LOCAL_TEAM,
            "job_id": job,
            "slug": "one",
            "reward": 1.0,
        }
        connection.execute(sa.insert(tables.runs).values(**row, status="completed"))
    graded = {"reward": 0.0, "evaluation_result": {"reward": 0.0}}
    run = bearer(server.key(scope="run"))
    answer = await server.ask("POST", f"{traces.prefix}/{trace}/exit", run, graded)
    assert answer.status == 404
    assert scores(store, LOCAL_TEAM, taskset["id"])["one"][0]["reward"] == 1.0


async def test_a_run_key_gives_no_outcome_to_a_run_of_a_baseline(server):
    """The newest outcome `reward` is the reward of a run without a grade."""
    store = server.parts.store
    taskset = {"id": new_id(), "name": "words", "version": 1}
    job, trace = open_job(store, LOCAL_TEAM, "victim", taskset), new_id()
    with store.begin() as connection:
        row = {"trace_id": trace, "team_id": LOCAL_TEAM, "job_id": job, "slug": "one"}
        connection.execute(sa.insert(tables.runs).values(**row, status="completed"))
    run = bearer(server.key(scope="run"))
    outcome = {"name": "reward", "value": 0.0}
    answer = await server.ask("POST", f"{traces.prefix}/{trace}/outcome", run, outcome)
    assert answer.status == 404
    with store.read() as connection:
        assert connection.execute(sa.select(tables.runs.c.reward)).scalar_one() is None


@pytest.mark.parametrize("later", [{"job_id": new_id()}, {"task_slug": "other"}])
async def test_a_run_of_training_stays_one_and_keeps_its_task(server, later):
    """Moved into another job, or under another slug, its task was no longer one that was trained on."""
    store = server.parts.store
    job, trace = new_id(), new_id()
    with store.begin() as connection:
        enter_job(connection, LOCAL_TEAM, job, "t", 1, None)
        connection.execute(sa.update(tables.jobs).values(purpose="training"))
    run, place = bearer(server.key(scope="run")), f"{traces.prefix}/{trace}/enter"
    entered = {"job_id": job, "task_slug": "one"}
    assert (await server.ask("POST", place, run, entered)).status == 200
    assert (await server.ask("POST", place, run, later)).status == 200
    with store.read() as connection:
        row = connection.execute(sa.select(tables.runs)).one()
    assert (row.job_id, row.slug) == (job, "one")
