"""Reports of waits: the run that everything waits for, and calls without a result."""

from __future__ import annotations

import logging

from hud.environment.templates.task import Task
from hud.eval import Job
from hud.eval.run import Run
from hud.eval.waits import QUIET_SECONDS, TOOL_SECONDS, PendingCall, Waits


def job_of(*words):
    tasks = [Task(env="words", id="say", args={"word": word}) for word in words]
    return Job(id="j", name="words", active=[Run(task=task) for task in tasks])


def silent(waits, seconds):
    waits.quiet_since -= seconds
    waits.look()


def test_a_silence_names_the_oldest_active_run_and_its_state():
    said = []
    waits = Waits(job_of("red", "green"), said.append)
    silent(waits, QUIET_SECONDS - 1)
    assert said == []
    silent(waits, 2)
    (text,) = said
    assert text.startswith("No run has ended for 31 s. Waiting for say(word='red') #0: ")
    assert "its environment is being brought up, since" in text
    assert text.endswith("and 1 more run.")


def test_a_silence_is_repeated_when_its_time_has_doubled_and_ends_with_a_run():
    said = []
    waits = Waits(job_of("red"), said.append)
    silent(waits, QUIET_SECONDS)
    silent(waits, QUIET_SECONDS - 1)
    assert len(said) == 1
    silent(waits, 2)
    assert len(said) == 2
    waits.ended()
    silent(waits, QUIET_SECONDS - 1)
    assert len(said) == 2


def test_a_batch_without_a_reader_logs_tool_calls_alone(caplog):
    job = job_of("red")
    waits = Waits(job)
    with caplog.at_level(logging.WARNING, "hud.eval"):
        silent(waits, 10 * QUIET_SECONDS)
        assert caplog.records == []
        call = PendingCall("nap", waits.quiet_since)
        job.active[0].live.calls.append(call)
        waits.look()
        waits.look()
    (record,) = caplog.records
    assert "say(word='red') #0 waits for its tool nap since" in record.message
    assert call.report_after > TOOL_SECONDS


def test_the_call_of_a_repeated_attempt_is_reported():
    said = []
    job = job_of("red")
    (broken,) = job.active
    broken.trace.extra["retried_as"] = "f" * 32
    again = broken.successor()
    again.live.calls.append(PendingCall("nap", Waits(job).quiet_since - 11))
    Waits(job, said.append).look()
    assert said[0].startswith("say(word='red') #0 waits for its tool nap since")
