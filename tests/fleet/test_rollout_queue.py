"""The queue of rollouts: who gets what next, who holds it, and whose results count."""

import threading
from collections import Counter

import pytest

from hud.client.recording import MemoryRecorder
from hud.environment import Task
from hud.errors import NotFoundError
from hud.eval.grade import Grade
from hud.eval.run import Run
from hud.platform.rollouts import rollout_queue
from hud.platform.rollouts.rollout_queue import Rollouts
from hud.platform.store import Store, records
from hud.trace import Step, Trace, new_id

MOST_ATTEMPTS = Rollouts.most_attempts
TEAM = "a" * 32
OTHER = "b" * 32
SPEC = {"env": "echo", "task": "say", "slug": "say", "agent": {"type": "openai", "config": {}}}


@pytest.fixture
def rollouts(tmp_path):
    store = Store.open(tmp_path)
    yield Rollouts(store)
    store.close()


def submit(rollouts, job=None, team=TEAM):
    trace = new_id()
    assert rollouts.submit(team, None, trace, job, SPEC) == "queued"
    return trace


def played(trace, *said, reward=1.0, failure=None):
    """What an attempt records."""
    recorder = MemoryRecorder()
    run = Run(task=Task(env="echo", id="say"), trace=Trace(trace_id=trace), recorder=recorder)
    recorder.run_started(run)
    for text in said:
        run.record(Step(source="system", error=text))
    if failure:
        run.fail(failure, "It broke.")
    else:
        run.grade = Grade(reward=reward)
        run.trace.status = "completed"
    recorder.run_ended(run)
    return recorder.take()


def state(rollouts, trace, team=TEAM):
    return records.find_run(rollouts.store, team, trace)


def steps(rollouts, trace):
    return [step["error"] for step in records.trace_steps(rollouts.store, TEAM, trace)]


@pytest.fixture
def leases_end_at_once(rollouts):
    rollouts.lease_seconds = -1.0


def test_a_late_result_of_a_rollout_that_was_given_to_another_changes_nothing(rollouts):
    trace = submit(rollouts)
    rollouts.lease_seconds = -1.0
    (first,) = rollouts.take("slow", 4)
    rollouts.lease_seconds = 30.0
    (second,) = rollouts.take("quick", 4)
    assert (first.attempt, second.attempt) == (1, 2)
    assert rollouts.renew("slow", [trace]) == ([], [trace])
    late = played(trace, "from the first", "and more of it", reward=0.25)
    assert not rollouts.finish("slow", trace, 1, late, again=False)
    assert rollouts.finish("quick", trace, 2, played(trace, "from the second"), again=False)
    assert not rollouts.finish("slow", trace, 1, late, again=False)
    assert not rollouts.finish("quick", trace, 2, played(trace, "twice", reward=0.5), again=False)
    assert steps(rollouts, trace) == ["from the second"]
    assert (state(rollouts, trace)["status"], state(rollouts, trace)["reward"]) == ("completed", 1)


def test_the_same_worker_cannot_bring_an_older_attempt(rollouts, leases_end_at_once):
    trace = submit(rollouts)
    rollouts.take("one", 1)
    rollouts.take("one", 1)
    assert not rollouts.finish("one", trace, 1, played(trace, "old"), again=False)
    assert rollouts.finish("one", trace, 2, played(trace, "new"), again=False)
    assert steps(rollouts, trace) == ["new"]


def test_infrastructure_is_tried_again_and_then_is_an_error(rollouts, monkeypatch):
    monkeypatch.setattr(rollout_queue, "PAUSE_SECONDS", 0.0)
    trace = submit(rollouts)
    for attempt in range(1, MOST_ATTEMPTS + 1):
        (taken,) = rollouts.take("one", 1)
        assert (taken.attempt, state(rollouts, trace)["status"]) == (attempt, "running")
        broken = played(trace, f"attempt {attempt}", failure="infrastructure")
        assert rollouts.finish("one", trace, attempt, broken, again=True)
    assert rollouts.take("one", 1) == []
    found = state(rollouts, trace)
    assert (found["status"], found["failure_kind"], found["reward"]) == (
        "error",
        "infrastructure",
        None,
    )
    assert steps(rollouts, trace) == [f"attempt {MOST_ATTEMPTS}", "It broke."]


def test_what_infrastructure_broke_waits_a_moment(rollouts, monkeypatch):
    monkeypatch.setattr(rollout_queue, "PAUSE_SECONDS", 3600.0)
    trace, other = submit(rollouts), submit(rollouts)
    assert [taken.trace_id for taken in rollouts.take("one", 1)] == [trace]
    broken = played(trace, failure="infrastructure")
    assert rollouts.finish("one", trace, 1, broken, again=True)
    assert [taken.trace_id for taken in rollouts.take("one", 4)] == [other]


def test_a_rollout_that_costs_too_many_workers_is_an_error(rollouts, leases_end_at_once):
    trace = submit(rollouts)
    for attempt in range(1, MOST_ATTEMPTS + 1):
        assert [taken.attempt for taken in rollouts.take(f"worker {attempt}", 1)] == [attempt]
    assert rollouts.take("another", 1) == []
    found = state(rollouts, trace)
    assert found["status"] == "error"
    assert f"{MOST_ATTEMPTS} workers were lost" in found["error"]


def test_handing_back_costs_no_attempt(rollouts):
    trace = submit(rollouts)
    for _ in range(2 * MOST_ATTEMPTS):
        (taken,) = rollouts.take("one", 1)
        assert taken.attempt == 1
        rollouts.release("one", [trace])
    assert state(rollouts, trace)["status"] == "running"


def test_a_large_job_lets_a_small_one_by(rollouts):
    large, small = new_id(), new_id()
    for _ in range(20):
        submit(rollouts, large)
    for _ in range(2):
        submit(rollouts, small)
    taken = Counter(one.job_id for one in rollouts.take("one", 4))
    assert taken == {large: 2, small: 2}
    assert Counter(one.job_id for one in rollouts.take("one", 4)) == {large: 4}


def test_teams_share_whatever_they_ask_for(rollouts):
    for _ in range(4):
        job = new_id()
        for _ in range(5):
            submit(rollouts, job)
    assert len(rollouts.take("one", 8)) == 8
    for _ in range(10):
        submit(rollouts, new_id(), OTHER)
    # The other team has none running yet.
    assert Counter(one.team_id for one in rollouts.take("two", 8)) == {OTHER: 8}
    assert Counter(one.team_id for one in rollouts.take("three", 4)) == {TEAM: 2, OTHER: 2}


def test_rollouts_without_a_job_are_taken_in_order(rollouts):
    traces = [submit(rollouts) for _ in range(5)]
    assert [one.trace_id for one in rollouts.take("one", 3)] == traces[:3]
    assert [one.trace_id for one in rollouts.take("one", 3)] == traces[3:]


def test_workers_that_ask_at_once_never_get_the_same(rollouts):
    job = new_id()
    traces = {submit(rollouts, job) for _ in range(60)}
    taken: list[str] = []

    def work(name):
        while found := rollouts.take(name, 3):
            taken.extend(one.trace_id for one in found)

    workers = [threading.Thread(target=work, args=(f"w{number}",)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    left = [one.trace_id for one in rollouts.take("last", 60)]  # Some were locked as others looked.
    assert sorted(taken + left) == sorted(traces)


def test_requests_that_come_twice_at_once_queue_one_rollout(rollouts):
    trace = new_id()
    said = []

    def send():
        said.append(rollouts.submit(TEAM, None, trace, None, SPEC))

    senders = [threading.Thread(target=send) for _ in range(6)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    assert said == ["queued"] * 6
    assert len(rollouts.take("one", 10)) == 1


def test_cancelling_before_it_is_played(rollouts):
    trace = submit(rollouts)
    assert rollouts.cancel(TEAM, trace_id=trace) == 1
    assert state(rollouts, trace)["status"] == "cancelled"
    assert rollouts.take("one", 1) == []
    assert rollouts.cancel(TEAM, trace_id=trace) == 0


def test_cancelling_while_it_is_played(rollouts):
    trace = submit(rollouts)
    rollouts.take("one", 1)
    assert rollouts.cancel(TEAM, trace_id=trace) == 1
    assert rollouts.cancel(TEAM, trace_id=trace) == 0
    assert rollouts.renew("one", [trace]) == ([trace], [])
    # What it was about to become no longer matters: nobody plays it again.
    broken = played(trace, failure="infrastructure")
    assert rollouts.finish("one", trace, 1, broken, again=True)
    assert rollouts.take("one", 1) == []


def test_cancelling_what_a_worker_hands_back_or_dies_with(rollouts):
    back = submit(rollouts)
    rollouts.take("stopping", 1)
    rollouts.cancel(TEAM, trace_id=back)
    rollouts.release("stopping", [back])
    rollouts.lease_seconds = -1.0
    lost = submit(rollouts)
    rollouts.take("dying", 1)
    rollouts.cancel(TEAM, trace_id=lost)
    assert rollouts.take("one", 4) == []
    assert [state(rollouts, trace)["status"] for trace in (back, lost)] == ["cancelled"] * 2


def test_cancelling_what_is_over_changes_nothing(rollouts):
    trace = submit(rollouts)
    rollouts.take("one", 1)
    assert rollouts.finish("one", trace, 1, played(trace), again=False)
    assert rollouts.cancel(TEAM, trace_id=trace) == 0
    assert state(rollouts, trace)["status"] == "completed"


def test_another_team_s_trace_is_not_there(rollouts):
    trace = submit(rollouts)
    with pytest.raises(NotFoundError):
        rollouts.submit(OTHER, None, trace, None, SPEC)
    assert rollouts.cancel(OTHER, trace_id=trace) == 0
    assert rollouts.cancel(OTHER) == 0
    assert rollouts.open_jobs(OTHER) == {}
