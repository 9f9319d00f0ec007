"""The queue of rollouts: who gets what next, who holds it, and whose results count."""

import threading
from collections import Counter

import pytest

from hud.client.recording import MemoryRecorder
from hud.environment import Task
from hud.errors import HudError, NotFoundError, PlatformError, UsageError
from hud.eval.grade import Grade
from hud.eval.run import Run
from hud.processes.backoff import Backoff
from hud.trace import Step, Trace, derived_id, new_id
from hud.trace.recording.journal import encode_event, encode_json, encode_step
from hud_platform.leases.leased_queue import Lease
from hud_platform.rollouts import rollout_queue
from hud_platform.rollouts.brought_events import Brought, store_events
from hud_platform.rollouts.rollout_queue import Rollouts
from hud_platform.store import Store, records

MOST_ATTEMPTS, MOST_PREEMPTIONS = Rollouts.most_attempts, Rollouts.most_preemptions
JOB = {
    "taskset_id": None,
    "benchmark": None,
    "group_size": 1,
    "pid": None,
    "process_started": None,
    "host": "h",
    "at": 1,
}
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


def played(trace, *said, reward=1.0, failure=None, job=None):
    """What an attempt records."""
    recorder = MemoryRecorder()
    task, record = Task(env="echo", id="say"), Trace(trace_id=trace)
    run = Run(task=task, trace=record, recorder=recorder, job_id=job)
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


def step(trace, number, said):
    """The journal line of one step."""
    made = Step(source="system", error=said, step_id=number)
    return encode_event(b"S", trace, number, encode_step(made))


def ended(trace):
    """What an attempt still brings at its end, where its steps were brought before."""
    lines = played(trace).splitlines(keepends=True)
    return b"".join(line for line in lines if line.split(b"\t")[1] in (b"R", b"E"))


def bring(rollouts, brought):
    (answer,) = store_events(rollouts, [brought])
    if isinstance(answer, HudError):
        raise answer
    return answer


def finish(rollouts, lease, events, *, again, first=True):
    return bring(rollouts, Brought(lease, events, again=again, first=first))


def stream(rollouts, lease, events, *, first):
    return bring(rollouts, Brought(lease, events, over=False, first=first))


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
    assert not finish(rollouts, Lease(trace, "slow", 1), late, again=False)
    assert finish(rollouts, Lease(trace, "quick", 2), played(trace, "from the second"), again=False)
    assert not finish(rollouts, Lease(trace, "slow", 1), late, again=False)
    assert not finish(
        rollouts, Lease(trace, "quick", 2), played(trace, "twice", reward=0.5), again=False
    )
    assert steps(rollouts, trace) == ["from the second"]
    assert (state(rollouts, trace)["status"], state(rollouts, trace)["reward"]) == ("completed", 1)


def test_the_same_worker_cannot_bring_an_older_attempt(rollouts, leases_end_at_once):
    trace = submit(rollouts)
    rollouts.take("one", 1)
    rollouts.take("one", 1)
    assert not finish(rollouts, Lease(trace, "one", 1), played(trace, "old"), again=False)
    assert finish(rollouts, Lease(trace, "one", 2), played(trace, "new"), again=False)
    assert steps(rollouts, trace) == ["new"]


def test_infrastructure_is_tried_again_and_then_is_an_error(rollouts, monkeypatch):
    monkeypatch.setattr(rollout_queue, "PAUSES", Backoff(0.0))
    trace = submit(rollouts)
    for attempt in range(1, MOST_ATTEMPTS + 1):
        (taken,) = rollouts.take("one", 1)
        assert (taken.attempt, state(rollouts, trace)["status"]) == (attempt, "running")
        broken = played(trace, f"attempt {attempt}", failure="infrastructure")
        assert finish(rollouts, Lease(trace, "one", attempt), broken, again=True)
    assert rollouts.take("one", 1) == []
    found = state(rollouts, trace)
    assert (found["status"], found["failure_kind"], found["reward"]) == (
        "error",
        "infrastructure",
        None,
    )
    assert steps(rollouts, trace) == [f"attempt {MOST_ATTEMPTS}", "It broke."]


def test_what_infrastructure_broke_waits_a_moment(rollouts, monkeypatch):
    monkeypatch.setattr(rollout_queue, "PAUSES", Backoff(3600.0))
    trace, other = submit(rollouts), submit(rollouts)
    assert [taken.trace_id for taken in rollouts.take("one", 1)] == [trace]
    broken = played(trace, failure="infrastructure")
    assert finish(rollouts, Lease(trace, "one", 1), broken, again=True)
    assert [taken.trace_id for taken in rollouts.take("one", 4)] == [other]


def test_a_rollout_that_costs_too_many_workers_is_an_error(rollouts, leases_end_at_once):
    trace = submit(rollouts)
    for attempt in range(1, MOST_PREEMPTIONS + 1):
        assert [taken.attempt for taken in rollouts.take(f"worker {attempt}", 1)] == [attempt]
    assert rollouts.take("another", 1) == []
    found = state(rollouts, trace)
    assert found["status"] == "error"
    assert f"{MOST_PREEMPTIONS} workers were lost" in found["error"]


def test_lost_workers_and_broken_infrastructure_have_bounds_of_their_own(rollouts, monkeypatch):
    monkeypatch.setattr(rollout_queue, "PAUSES", Backoff(0.0))
    trace = submit(rollouts)
    number = 0
    # Each time: a worker is lost, one hands it back, and infrastructure breaks.
    for _ in range(MOST_ATTEMPTS - 1):
        rollouts.lease_seconds = -1.0
        number += len(rollouts.take("dying", 1))
        rollouts.lease_seconds = 30.0
        number += len(rollouts.take("leaving", 1))
        rollouts.release("leaving", [trace])
        number += len(rollouts.take("one", 1))
        broken = played(trace, failure="infrastructure")
        assert finish(rollouts, Lease(trace, "one", number), broken, again=True)
    number += len(rollouts.take("one", 1))
    record = rollouts.record(TEAM, trace)
    assert (record["faults"], record["preemptions"]) == (MOST_ATTEMPTS - 1, 2 * (MOST_ATTEMPTS - 1))
    outcomes = [one["outcome"] for one in record["attempts"]]
    assert outcomes == ["lost", "handed back", "broken"] * (MOST_ATTEMPTS - 1) + ["running"]
    assert finish(rollouts, Lease(trace, "one", number), played(trace, "at last"), again=False)
    assert rollouts.record(TEAM, trace)["attempts"][-1] == {
        "attempt": number,
        "node": "one",
        "outcome": "ended",
        "ended_at": rollouts.record(TEAM, trace)["attempts"][-1]["ended_at"],
    }
    assert (state(rollouts, trace)["status"], steps(rollouts, trace)) == ("completed", ["at last"])


def test_handing_back_is_bounded_too(rollouts):
    trace = submit(rollouts)
    for attempt in range(1, MOST_PREEMPTIONS + 1):
        (taken,) = rollouts.take("one", 1)
        assert (taken.attempt, state(rollouts, trace)["status"]) == (attempt, "running")
        rollouts.release("one", [trace])
    assert rollouts.take("one", 1) == []
    assert state(rollouts, trace)["status"] == "error"


def test_steps_are_there_while_it_is_played_and_gone_with_a_lost_attempt(rollouts):
    trace = submit(rollouts)
    rollouts.take("one", 1)
    first = Lease(trace, "one", 1)
    assert stream(rollouts, first, step(trace, 1, "a"), first=True)
    assert stream(rollouts, first, step(trace, 2, "b"), first=False)
    assert stream(rollouts, first, step(trace, 2, "b"), first=False)
    assert steps(rollouts, trace) == ["a", "b"]
    assert state(rollouts, trace)["status"] == "running"
    rollouts.release("one", [trace])
    assert steps(rollouts, trace) == []
    assert not stream(rollouts, first, step(trace, 3, "late"), first=False)
    rollouts.take("two", 1)
    second = Lease(trace, "two", 2)
    assert stream(rollouts, second, step(trace, 1, "again"), first=True)
    assert finish(rollouts, second, ended(trace), again=False, first=False)
    assert steps(rollouts, trace) == ["again"]
    assert state(rollouts, trace)["reward"] == 1.0


def test_a_result_for_a_lease_that_never_was_is_refused_and_logged(rollouts, caplog):
    trace = submit(rollouts)
    rollouts.take("one", 1)
    for lease in (Lease(trace, "two", 1), Lease(trace, "one", 2), Lease(new_id(), "one", 1)):
        with pytest.raises(PlatformError, match="never held"):
            finish(rollouts, lease, played(trace, reward=0.9), again=False)
        with pytest.raises(PlatformError, match="never held"):
            stream(rollouts, lease, step(trace, 1, "forged"), first=True)
    assert "which it never held" in caplog.text
    assert (state(rollouts, trace)["status"], steps(rollouts, trace)) == ("running", [])


def test_a_result_says_nothing_of_other_runs_and_jobs(rollouts):
    job, other_job = new_id(), new_id()
    trace, victim = submit(rollouts, job), submit(rollouts, other_job)
    rollouts.take("one", 2)
    lease = Lease(trace, "one", 1)
    opened = encode_event(
        b"J", other_job, 0, encode_json({**JOB, "name": "say", "called_as": "say"})
    )
    for forged in (
        played(trace) + played(victim, reward=0.9),
        played(trace) + step(victim, 1, "forged"),
        played(trace) + opened,
        played(trace) + encode_event(b"Z", other_job, 0, b'{"status":"completed","at":1}'),
        played(trace) + played(new_id(), job=other_job),
    ):
        with pytest.raises(UsageError, match="none of this rollout's"):
            finish(rollouts, lease, forged, again=False)
    assert state(rollouts, victim)["reward"] is None
    # What it says of its own job and group is not heard, either.
    assert finish(rollouts, lease, played(trace, job=other_job), again=False)
    assert (state(rollouts, trace)["job_id"], state(rollouts, trace)["reward"]) == (job, 1.0)


def test_of_several_ends_in_one_request_each_counts_for_itself(rollouts):
    job, subagent = new_id(), new_id()
    good, damaged, forged, first, second, late = (submit(rollouts, job) for _ in range(6))
    rollouts.take("one", 5)
    inside = derived_id(job, "ask")
    opened = encode_event(
        b"J",
        inside,
        0,
        encode_json({**JOB, "name": "ask", "called_as": "ask", "purpose": "subagent"}),
    )
    called = opened + played(subagent, job=inside, reward=0.5)
    answers = store_events(
        rollouts,
        [
            Brought(Lease(good, "one", 1), played(good, "a step", reward=0.75)),
            Brought(Lease(damaged, "one", 1), played(damaged).replace(b"echo", b"ohce")),
            Brought(Lease(forged, "one", 1), played(forged) + played(good, reward=0.1)),
            Brought(Lease(first, "one", 1), played(first) + called),
            # A subagent's run is one rollout's alone.
            Brought(Lease(second, "one", 1), played(second) + called),
            Brought(Lease(late, "one", 1), played(late)),
        ],
    )
    told = [str(one) if isinstance(one, HudError) else one for one in answers]
    assert (told[0], told[3]) == (True, True)
    assert "damaged" in told[1]
    assert "none of this rollout's" in told[2]
    assert "none of this rollout's" in told[4]
    assert "never held" in told[5]
    assert [state(rollouts, one)["reward"] for one in (good, first, subagent)] == [0.75, 1.0, 0.5]
    assert steps(rollouts, good) == ["a step"]
    for trace in (damaged, forged, second, late):
        assert state(rollouts, trace)["reward"] is None


def test_an_end_that_comes_twice_in_one_request_counts_once(rollouts):
    trace = submit(rollouts)
    rollouts.take("one", 1)
    lease = Lease(trace, "one", 1)
    ends = [Brought(lease, played(trace, reward=reward)) for reward in (0.25, 0.75)]
    assert store_events(rollouts, ends) == [True, False]
    assert store_events(rollouts, ends) == [False, False]
    assert state(rollouts, trace)["reward"] == 0.25


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


@pytest.mark.slow
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
    assert finish(rollouts, Lease(trace, "one", 1), broken, again=True)
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
    assert finish(rollouts, Lease(trace, "one", 1), played(trace), again=False)
    assert rollouts.cancel(TEAM, trace_id=trace) == 0
    assert state(rollouts, trace)["status"] == "completed"


def test_another_team_s_trace_is_not_there(rollouts):
    trace = submit(rollouts)
    with pytest.raises(NotFoundError):
        rollouts.submit(OTHER, None, trace, None, SPEC)
    assert rollouts.cancel(OTHER, trace_id=trace) == 0
    assert rollouts.cancel(OTHER) == 0
    assert rollouts.open_jobs(OTHER) == {}
