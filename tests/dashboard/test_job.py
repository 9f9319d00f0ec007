"""One job: its numbers, its tasks, its failures, and what is done with it."""

import time

import pytest
from tests.dashboard.conftest import sign_in
from tests.dashboard.recorded import line, record, run_lines

from hud.trace import dashed, new_id
from hud_platform.access.teams import Teams
from hud_platform.leases.leased_queue import Lease
from hud_platform.rollouts.brought_events import Brought, store_events
from hud_platform.rollouts.rollout_queue import Rollouts
from hud_platform.store.ingest import ingest
from hud_platform.store.tables import LOCAL_TEAM

FAULT = {"reward": None, "status": "error", "failure_kind": "environment"}


async def data(web, job, query=""):
    answer = await web.get(f"/jobs/{job}.json{query}")
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.slow
async def test_the_links_of_clients_lead_to_the_job(web, platform):
    job = record(platform, "triage", {"a": [1.0]})
    for name in (job, dashed(job), job[:10]):
        assert "triage" in (await web.get(f"/jobs/{name}")).text
    assert (await web.get(f"/jobs/{new_id()}")).status_code == 404


async def test_its_page_tells_rewards_signal_and_failures(web, platform):
    job = record(
        platform,
        "triage",
        {
            "hopeless": [0.0, 0.0],
            "solved": [1.0, 1.0],
            "learning": [0.0, 1.0, 0.5],
            "broken": [{**FAULT, "error": f"Timeout after {n} s\nTraceback"} for n in (30, 31)],
            "bad answer": [
                {"reward": 0.0, "failure_kind": "agent", "status": "error", "error": "no JSON"},
                1.0,
            ],
        },
    )
    told = await data(web, job)
    assert told["signals"] == {"never": 1, "always": 1, "some": 2}
    assert told["numbers"]["measured"] == 9
    assert told["numbers"]["reward"] == pytest.approx(4.5 / 9)
    assert sum(told["distribution"]["counts"]) == 9
    causes = [(one["kind"], one["count"], one["tasks"], one["counted"]) for one in told["failures"]]
    assert causes == [("environment", 2, 1, False), ("agent", 1, 1, True)]
    assert told["failures"][0]["error"].startswith("Timeout after 30 s")
    page = (await web.get(f"/jobs/{job}")).text
    assert "<b>2 of 4</b> tasks scored the same in every run" in page
    assert page.count('class="cell r') >= 9
    assert 'aria-label="Run 1: not measured: environment"' in page


async def test_runs_of_several_checkpoints_are_no_samples_of_one_policy(web, platform):
    nodes = [new_id() for _ in range(3)]
    runs = [{"reward": reward, "checkpoint": node} for node in nodes for reward in (0.0, 1.0)]
    job = record(platform, "m training", {"a": runs}, model="m", purpose="training")
    numbers = (await data(web, job))["numbers"]
    assert (numbers["policies"], numbers["pass_at_1"], numbers["largest_k"]) == (3, None, None)
    page = (await web.get(f"/jobs/{job}")).text
    assert "<dt>pass@" not in page
    assert "3 policies played these runs: means are over all of them" in page
    unplayed = {"reward": 0.0, "failure_kind": "agent", "turns": 0}
    job = record(
        platform, "m", {"a": [*runs[:2], {**unplayed, "checkpoint": None}]}, checkpoint=nodes[0]
    )
    numbers = (await data(web, job))["numbers"]
    assert (numbers["policies"], numbers["largest_k"]) == (1, 3)
    assert "<dt>pass@3</dt>" in (await web.get(f"/jobs/{job}")).text


async def test_the_signal_of_a_training_is_that_of_each_tasks_newest_group(web, platform):
    job, start = new_id(), time.time_ns() // 1000
    begun = {"name": "m training", "group_size": 2, "purpose": "training", "taskset_id": None}
    begun |= {"pid": 1, "process_started": None, "host": None, "at": start}
    lines = [line(b"J", job, begun), line(b"Z", job, {"status": "completed", "at": start})]
    groups = ((0.0, 1.0), (1.0, 1.0))
    for at, rewards in enumerate(groups):
        shared = {"job_id": job, "slug": "a", "model": "m", "group_id": new_id()}
        for reward in rewards:
            known = {**shared, "attempt": 0, "started_at": start + at}
            lines += run_lines(new_id(), known, reward, checkpoint=str(at) * 32)
    assert not ingest(platform.store, b"".join(lines), LOCAL_TEAM).damaged
    (task,) = (await data(web, job))["tasks"]
    assert (task["reward"], task["signal"]) == (0.75, "always")


CALLS = {"calls": 8, "error": 5, "time-out": 1}


async def test_failed_tool_calls_are_shown_by_kind(web, platform):
    hopeless = {"reward": 1.0, "extra": {"tool_calls": {"calls": 2, "error": 2}}}
    job = record(
        platform,
        "triage",
        {"a": [{"reward": 1.0, "extra": {"tool_calls": CALLS}}, hopeless], "b": [1.0]},
    )
    numbers = (await data(web, job))["numbers"]
    assert (numbers["tool_calls"], numbers["tool_calls_failed"]) == (10, 8)
    page = (await web.get(f"/jobs/{job}")).text
    assert "Tool calls failed: 8 of 10 (7 errors, 1 time-out)." in page
    assert "No call succeeded in 1 run, whose mean reward is 1.000." in page
    whole = record(platform, "triage", {"a": [1.0]})
    assert "Tool calls" not in (await web.get(f"/jobs/{whole}")).text


async def test_counts_of_tool_calls_that_are_none_are_ignored(web, platform):
    odd = [{"calls": -1}, {"calls": "9"}, [3], 7, {"calls": 1 << 40}]
    runs = [{"reward": 1.0, "extra": {"tool_calls": counts}} for counts in odd]
    numbers = (await data(web, record(platform, "odd", {"a": runs})))["numbers"]
    assert (numbers["runs"], numbers["tool_calls"]) == (5, 0)


async def test_a_job_of_a_benchmark_shows_its_percentile_and_what_that_stands_on(web, platform):
    tasks = {"multi_turn_base_3": [1.0], "multi_turn_base_7": [0.0]}
    job = record(platform, "bfcl", tasks, benchmark="bfcl-multi-turn")
    told = await data(web, job)
    assert (told["percentile"]["mean"], told["job"]["benchmark"]) == (0.5, "bfcl-multi-turn")
    assert "reference-anchored, no human baseline yet" in (await web.get(f"/jobs/{job}")).text
    other = record(platform, "triage", {"a": [1.0]})
    assert (await data(web, other))["percentile"] is None
    assert "Percentile" not in (await web.get(f"/jobs/{other}")).text


@pytest.mark.slow
async def test_tasks_are_sorted_by_any_measure_and_chosen(web, platform):
    job = record(
        platform, "triage", {"b": [0.0, 0.0], "a": [0.0, 1.0], "c": [{**FAULT, "error": "x"}]}
    )

    async def slugs(query):
        return [task["slug"] for task in (await data(web, job, query))["tasks"]]

    assert await slugs("") == ["b", "a", "c"]
    assert await slugs("?sort=slug") == ["a", "b", "c"]
    assert await slugs("?sort=-reward") == ["a", "b", "c"]
    assert await slugs("?sort=-spread") == ["a", "b", "c"]
    assert await slugs("?sort=-failed") == ["c", "b", "a"]
    for measure in ("turns", "tokens", "cost", "seconds"):
        assert set(await slugs(f"?sort=-{measure}")) == {"a", "b", "c"}
    assert await slugs("?show=no-signal") == ["b"]
    assert await slugs("?show=failed") == ["c"]
    assert (await web.get(f"/jobs/{job}?sort=nothing")).status_code == 400
    assert "Runs of" in (await web.get(f"/jobs/{job}?task=a")).text


async def test_a_job_without_runs_is_a_page(web, platform):
    job = record(platform, "empty", {})
    assert "No run has begun yet." in (await web.get(f"/jobs/{job}")).text


async def test_an_interrupted_job_says_how_it_goes_on(web, platform, monkeypatch):
    job = record(platform, "left", {"a": [1.0, None]}, open_job=True)
    monkeypatch.setattr("hud_platform.store.job_status.process_lives", lambda *_: False)
    page = (await web.get(f"/jobs/{job}")).text
    assert f"--resume {job[:12]}" in page
    assert "not measured: cancelled" in page


# -- while it runs -----------------------------------------------------------------------------------------


async def test_its_stream_tells_when_it_went_on_and_when_it_is_over(web, platform):
    job = record(platform, "live", {"a": [None]}, open_job=True)
    page = await data(web, job)
    assert f"/events/jobs/{job}?seen=" in (await web.get(f"/jobs/{job}")).text
    known = {"job_id": job, "group_id": new_id(), "slug": "a", "attempt": 1, "started_at": 1}
    lines = run_lines(new_id(), known, 0.5)
    ingest(platform.store, b"".join(lines), "0" * 32)
    over = line(b"Z", job, {"status": "completed", "at": 2})
    ingest(platform.store, over, "0" * 32)
    answer = await web.get(f"/events/jobs/{job}?seen={page['revision']}")
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [part.partition("\n")[0] for part in answer.text.split("\n\n") if part]
    assert events == ["event: changed", "event: over"]
    assert "/events/" not in (await web.get(f"/jobs/{job}")).text


# -- what the platform plays ---------------------------------------------------------------------------------


def submit(platform, team, count=3):
    """Queue rollouts of a job; returns its id and theirs."""
    job, group = new_id(), new_id()
    traces = [new_id() for _ in range(count)]
    for attempt, trace in enumerate(traces):
        spec = {
            "env": "world",
            "task": "solve",
            "slug": "solve-1",
            "agent": {"type": "openai_compatible", "config": {"model": "tiny"}},
            "group_id": group,
            "attempt": attempt,
        }
        Rollouts(platform.store).submit(team, None, trace, job, spec)
    return job, traces


async def test_a_job_that_the_platform_plays_is_cancelled_resumed_and_run_again(keyed):
    team = Teams(keyed.store).default().id
    job, traces = submit(keyed, team)
    async with sign_in(keyed, "run") as web:
        page = (await web.get(f"/jobs/{job}")).text
        assert f'action="/jobs/{job}/cancel"' in page
        assert f'action="/jobs/{job}/resume"' not in page
        assert 'aria-label="Run 1: queued"' in page
        assert (await web.post(f"/jobs/{job}/cancel")).headers["location"] == f"/jobs/{job}"
        told = await data(web, job)
        assert told["hosted"] == {"known": 3, "open": 0, "unmeasured": 3}
        assert told["job"]["status"] == "completed"
        assert (await web.post(f"/jobs/{job}/resume")).status_code == 303
        told = await data(web, job)
        assert told["hosted"] == {"known": 3, "open": 3, "unmeasured": 0}
        assert [run["trace_id"] for run in told["tasks"][0]["runs"]] == traces
        assert (await web.post(f"/jobs/{job}/resume")).status_code == 400
        again = (await web.post(f"/jobs/{job}/rerun")).headers["location"].rpartition("/")[2]
        told = await data(web, again)
        assert (told["job"]["name"], told["hosted"]["open"]) == (told["job"]["name"], 3)
        assert not {run["trace_id"] for run in told["tasks"][0]["runs"]} & set(traces)
    assert len(Rollouts(keyed.store).take("worker", 10)) == 6


@pytest.mark.slow
async def test_what_was_measured_is_not_played_again_by_resuming(keyed):
    team = Teams(keyed.store).default().id
    job, traces = submit(keyed, team)
    rollouts = Rollouts(keyed.store)
    first, *_ = rollouts.take("worker", 3)
    known = {"job_id": job, "group_id": new_id(), "slug": "s", "attempt": 0, "started_at": 1}
    events = b"".join(run_lines(first.trace_id, known, 1.0))
    lease = Lease(first.trace_id, "worker", first.attempt)
    assert store_events(rollouts, [Brought(lease, events)]) == [True]
    rollouts.cancel(team, job_id=job)
    rollouts.release("worker", traces[1:])
    async with sign_in(keyed, "run") as web:
        await web.post(f"/jobs/{job}/resume")
        assert (await data(web, job))["hosted"]["open"] == 2
        assert (await data(web, job))["numbers"]["measured"] == 1


@pytest.mark.parametrize("what", ["cancel", "resume", "rerun"])
async def test_who_may_only_read_is_offered_nothing_and_refused(keyed, what):
    job, _ = submit(keyed, Teams(keyed.store).default().id)
    async with sign_in(keyed, "read") as web:
        assert f"/jobs/{job}/{what}" not in (await web.get(f"/jobs/{job}")).text
        answer = await web.post(f"/jobs/{job}/{what}")
        assert answer.status_code == 403
        assert "lacks the scope" in answer.text
    assert len(Rollouts(keyed.store).take("worker", 10)) == 3


async def test_what_another_process_plays_is_not_cancelled_here(web, platform):
    job = record(platform, "elsewhere", {"a": [None]}, open_job=True)
    assert "Ctrl-C" in (await web.post(f"/jobs/{job}/cancel")).text
    assert "hud eval" in (await web.post(f"/jobs/{job}/rerun")).text


# -- side by side ----------------------------------------------------------------------------------------------


async def test_jobs_are_compared_task_by_task(web, platform):
    bad, good = [0.0] * 6, [1.0] * 6
    before = record(
        platform, "before", {"up": bad, "down": good, "same": [0.0, 1.0], "old": bad}, age=9
    )
    after = record(platform, "after", {"up": good, "down": bad, "same": [1.0, 0.0], "new": bad})
    told = (await web.get(f"/jobs/compare.json?job={after}&job={before}")).json()
    assert [job["name"] for job in told["jobs"]] == ["before", "after"]
    (found,) = told["pairings"]
    assert (found["better"], found["worse"], found["same"]) == (1, 1, 1)
    assert (found["verdict"], found["only_before"], found["only_after"]) == (
        "noise",
        ["old"],
        ["new"],
    )
    verdicts = {task["slug"]: task["changes"][0]["verdict"] for task in told["tasks"]}
    assert verdicts == {"up": "better", "down": "worse", "same": "noise"}
    page = (await web.get(f"/jobs/compare?job={before}&job={after}&sort=-difference")).text
    assert page.index(">up<") < page.index(">down<")
    assert f"job={before}&amp;job={after}" in page.replace(f"job={after}&amp;job={before}", "")


async def test_one_job_cannot_be_compared_with_itself(web, platform):
    job = record(platform, "alone", {"a": [1.0]})
    answer = await web.get(f"/jobs/compare?job={job}&job={job}")
    assert answer.status_code == 400
    assert "Choose 2 to 6 jobs" in answer.text


async def test_jobs_without_a_common_task_say_so(web, platform):
    one, two = (record(platform, name, {name: [1.0]}) for name in ("a", "b"))
    assert (
        "No task was measured in both" in (await web.get(f"/jobs/compare?job={one}&job={two}")).text
    )
