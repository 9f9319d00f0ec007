"""One job has one interval, wherever it is shown."""

from tests.dashboard.recorded import line, record, run_lines

from hud.eval.results.intervals import bounds
from hud.eval.results.job_statistics import job_statistics
from hud.eval.results.run_summary import RunSummary
from hud.trace import new_id
from hud.train.promotion.checkpoint_comparison import compared
from hud_platform.store.ingest import ingest
from hud_platform.store.tables import LOCAL_TEAM

TASKS = {"a": [0.0, 0.0], "b": [1.0, 0.0], "c": [0.0, 0.0], "d": [0.0, 0.0, 0.25], "e": [0.1]}


async def test_a_job_has_one_interval_in_python_in_the_list_and_on_its_page(web, platform):
    """Also where a task was played in several groups: its runs are one cluster."""
    job = record(platform, "held out", TASKS, open_job=True)
    again = {"job_id": job, "group_id": new_id(), "attempt": 0, "slug": "b", "model": "tiny"}
    lines = run_lines(new_id(), {**again, "started_at": 1_800_000_000_000_000}, 1.0)
    lines.append(line(b"Z", job, {"status": "completed", "at": 1_900_000_000_000_000}))
    assert not ingest(platform.store, b"".join(lines), LOCAL_TEAM).damaged
    rewards = {**TASKS, "b": [*TASKS["b"], 1.0]}
    runs = [RunSummary(slug, reward) for slug, group in rewards.items() for reward in group]
    found = job_statistics(runs).interval
    score = compared("m", "one", "two", rewards, rewards).first_score
    assert (score.low, score.high) == (found.low, found.high)

    (listed,) = (await web.get("/jobs.json")).json()["items"]
    numbers = (await web.get(f"/jobs/{job}.json")).json()["numbers"]
    for shown in (listed, numbers):
        assert (shown["low"], shown["high"]) == (found.low, found.high)
    text = bounds(found.low, found.high)
    for page in ("/jobs", f"/jobs/{job}"):
        assert text in (await web.get(page)).text


async def test_no_page_shows_half_a_width_for_an_interval(web, platform):
    job = record(platform, "held out", TASKS)
    other = record(platform, "later", {**TASKS, "a": [1.0, 1.0]})
    for page in ("/jobs", f"/jobs/{job}", f"/jobs/compare?job={job}&job={other}"):
        assert "±" not in (await web.get(page)).text


def test_one_task_gives_a_mean_and_no_interval_that_claims_certainty():
    found = compared("m", "one", "two", {"a": [0.0, 1.0]}, {"a": [1.0, 1.0]})
    assert (found.difference.mean, found.difference.low, found.difference.high) == (0.5, None, None)
    assert found.verdict == "no difference that these tasks can show"
