"""Jobs as a recorder tells of them, for pages to show."""

import os
import time

import orjson

from hud.processes.presence import process_started
from hud.trace import new_id
from hud.trace.recording.journal import encode_event
from hud_platform.store.ingest import ingest
from hud_platform.store.tables import LOCAL_TEAM

ENDED = {"status": "completed", "stop_reason": "done", "step_count": 4, "turns": 2}


def record(
    platform,
    name,
    tasks,
    *,
    model="tiny",
    checkpoint=None,
    taskset_id=None,
    benchmark=None,
    purpose="evaluation",
    age=0.0,
    open_job=False,
    planned=None,
    taskset=None,
    team=LOCAL_TEAM,
    task=None,
    called_by=None,
    job=None,
):
    """Record a job and return its id. `tasks`: slug to what each of its runs came to.

    That is a reward, None (still running), or a mapping of columns of `runs`. `age` is in seconds; `open_job` leaves
    the job running, in this process. `task`: the task of every run.
    """
    job = job or new_id()
    at = round((time.time() - age) * 1e6)
    begun = {
        "name": name,
        "called_by": called_by,
        "taskset_id": taskset_id,
        "benchmark": benchmark,
        "purpose": purpose,
        "group_size": max((len(runs) for runs in tasks.values()), default=1),
        "pid": os.getpid(),
        "process_started": process_started(os.getpid()),
        "host": os.uname().nodename,
        "at": at,
    }
    # Journals of earlier versions have no such fields.
    more = {"planned": planned, "taskset": taskset}
    begun |= {name: value for name, value in more.items() if value is not None}
    lines = [line(b"J", job, begun)]
    for slug, runs in tasks.items():
        group = new_id()
        for attempt, outcome in enumerate(runs):
            known = {
                "job_id": job,
                "group_id": group,
                "attempt": attempt,
                "slug": slug,
                "model": model,
                "task": task,
                "started_at": at + len(lines),
            }
            lines += run_lines(new_id(), known, outcome, checkpoint)
    if not open_job:
        lines.append(line(b"Z", job, {"status": "completed", "at": at + 60_000_000}))
    assert not ingest(platform.store, b"".join(lines), team).damaged
    return job


def run_lines(trace, known, outcome, checkpoint=None):
    """Return what is told of one run: that it began and, unless `outcome` is None, how it ended."""
    lines = [line(b"R", trace, known)]
    if outcome is not None:
        came_to = outcome if isinstance(outcome, dict) else {"reward": outcome}
        usage = {"prompt_tokens": 900, "completion_tokens": 100, "cost_usd": 0.01}
        ended = {"ended_at": known["started_at"] + 30_000_000, "checkpoint": checkpoint}
        lines.append(line(b"E", trace, {**known, **ENDED, **usage, **ended, **came_to}))
    return lines


def line(kind, identifier, payload):
    return encode_event(kind, identifier, 0, orjson.dumps(payload))
