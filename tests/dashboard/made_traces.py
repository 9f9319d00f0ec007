"""Traces for the tests of their pages: of every kind that there is, put into a store as a recorder would."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from datetime import UTC, datetime, timedelta

import orjson

from hud.trace import new_id
from hud.trace.recording.journal import encode_event
from hud_platform.store import tables
from hud_platform.store.ingest import ingest

BEGAN = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)


def png(width=320, height=200, shade=200, declared=None):
    """A PNG of one colour; `declared` is the size that its header claims."""
    row = b"\0" + bytes((shade, 255 - shade, (shade * 7) % 256)) * width
    head = struct.pack(">IIBBBBB", *(declared or (width, height)), 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(row * height)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )


def image(data=None, mime="image/png"):
    """A block of content that is an image."""
    encoded = base64.b64encode(png() if data is None else data).decode()
    return {"type": "image", "data": encoded, "mimeType": mime}


def text(words):
    """A block of content that is text."""
    return {"type": "text", "text": words}


def at(seconds, took=0.5):
    """When a step began and ended, in seconds of its run."""
    began = BEGAN + timedelta(seconds=seconds)
    ended = began + timedelta(seconds=took)
    return {"started_at": began.isoformat(), "ended_at": ended.isoformat()}


def conversation():
    """The steps of a short run of our own: two turns, a tool, a file that changed, a state, a grade."""
    call = {"id": "call-1", "name": "bash", "arguments": {"command": "ls -la\nwc -l notes.txt"}}
    patch = "--- a/notes.txt\n+++ b/notes.txt\n@@ -1,2 +1,2 @@\n kept\n-old line\n+new line\n"
    files = {
        "files_changed": 1,
        "patches": [
            {
                "path": "notes.txt",
                "status": "modified",
                "patch": patch,
                "size_before": 14,
                "size_after": 14,
            }
        ],
    }
    subscores = [
        {"name": "answer", "value": 1.0, "weight": 3, "info": {"reason": "The count is right."}},
        {
            "name": "manner",
            "value": 0.5,
            "weight": 1,
            "children": [
                {"name": "brief", "value": 1.0, "weight": 1},
                {"name": "polite", "value": 0.0, "weight": 1},
            ],
        },
        {"name": "waste", "value": 0.25, "weight": -0.1},
    ]
    grade = {"score": 0.85, "content": "Right, and a little wasteful.", "subscores": subscores}
    return [
        {
            "source": "task",
            "task_call": {"phase": "setup", "name": "count", "arguments": {"word": "straw"}},
            **at(0, 0.2),
        },
        {
            "source": "user",
            "messages": [{"role": "user", "content": "Count the lines of notes.txt."}],
            **at(0.2, 0),
        },
        {
            "source": "agent",
            "content": "I look at the file.",
            "reasoning": "First the listing, then the count.",
            "tool_calls": [call],
            "usage": {"prompt_tokens": 120, "completion_tokens": 24, "cached_tokens": 100},
            **at(0.3, 1.5),
        },
        {
            "source": "tool",
            "call": call,
            "result": {"content": [text("-rw-r--r-- notes.txt\n2 notes.txt")]},
            "extra": {"state": {"lines": 2, "open": ["notes.txt"]}, "files": files},
            **at(1.9, 0.4),
        },
        {
            "source": "tool",
            "call": {"id": "call-2", "name": "look", "arguments": {}},
            "result": {"content": [text("No such screen.")], "isError": True},
            "extra": {"state": {"lines": 3, "open": []}},
            **at(2.3, 0.1),
        },
        {
            "source": "agent",
            "content": "There are 2 lines.",
            "tool_calls": [],
            "done": True,
            "usage": {"prompt_tokens": 180, "completion_tokens": 8},
            **at(2.5, 0.7),
        },
        {
            "source": "task",
            "task_call": {
                "phase": "evaluate",
                "name": "count",
                "arguments": {"answer": "There are 2 lines."},
                "result": grade,
            },
            **at(3.3, 0.3),
        },
    ]


def put_run(store, steps=(), *, samples=(), first=1, over=True, team=tables.LOCAL_TEAM, **known):
    """Put a run into a store and return the id of its trace. `samples` are `(step, ids, logprobs, checkpoint)`."""
    trace_id = known.pop("trace_id", None) or new_id()
    lines = []
    micro = round(BEGAN.timestamp() * 1e6)
    row = {
        "job_id": None,
        "group_id": None,
        "attempt": 0,
        "slug": "count-straw",
        "task": {"env": "letters", "id": "count", "args": {"word": "straw"}},
        "model": "tiny",
        "started_at": micro,
        **known,
    }
    lines.append(encode_event(b"R", trace_id, 0, json.dumps(row).encode()))
    for number, step in enumerate(steps, first):
        payload = json.dumps({"step_id": number, **step}).encode()
        lines.append(encode_event(b"S", trace_id, number, payload))
    for step, ids, logprobs, checkpoint in samples:
        sample = {
            "extends": None,
            "prompt": [1, 2, 3],
            "output": ids,
            "logprobs": logprobs,
            "checkpoint": checkpoint,
            "swaps": [],
            "temperature": 1.0,
        }
        lines.append(encode_event(b"T", trace_id, step, orjson.dumps(sample)))
    if over:
        graded = [step["task_call"]["result"] for step in steps if _is_grade(step)]
        end = {
            "status": "completed",
            "grade": graded[-1] if graded else None,
            "reward": graded[-1].get("score") if graded else None,
            "step_count": len(steps),
            "turns": sum(step.get("source") == "agent" for step in steps),
            "ended_at": micro + 4_000_000,
            **row,
        }
        lines.append(encode_event(b"E", trace_id, 0, json.dumps(end).encode()))
    ingested = ingest(store, b"".join(lines), team)
    assert not ingested.damaged
    return trace_id


def add_step(store, trace_id, number, step, team=tables.LOCAL_TEAM):
    """Put one more step into a trace."""
    payload = orjson.dumps({"step_id": number, **step})
    ingest(store, encode_event(b"S", trace_id, number, payload), team)


def put_job(store, job_id, name="counting", group=4, team=tables.LOCAL_TEAM):
    """Put a job into a store."""
    row = {
        "name": name,
        "taskset_id": None,
        "group_size": group,
        "pid": None,
        "process_started": None,
        "host": "here",
        "at": round(BEGAN.timestamp() * 1e6),
    }
    ingest(store, encode_event(b"J", job_id, 0, orjson.dumps(row)), team)
    return job_id


def long_trace(count=2000, shots=200):
    """A run of many steps, with a screenshot every so often; every 97th tool call fails."""
    steps = conversation()[:2]
    every = max(1, count // max(1, shots))
    number = len(steps)
    while len(steps) < count:
        number = len(steps)
        call = {"id": f"call-{number}", "name": "click", "arguments": {"x": number % 800, "y": 17}}
        steps.append(
            {
                "source": "agent",
                "content": f"Turn {number}: I click at {number % 800}.",
                "tool_calls": [call],
                "usage": {
                    "prompt_tokens": 500 + 40 * number,
                    "completion_tokens": 20 + number % 60,
                },
                **at(number, 0.9),
            }
        )
        extra = {}
        if (number // 2) % max(1, every // 2) == 0:
            extra["screenshot"] = image(png(shade=number % 256, height=180 + number % 40))
        steps.append(
            {
                "source": "tool",
                "call": call,
                "result": {
                    "content": [text(f"Clicked {number}. " + "The page says so. " * 8)],
                    "isError": (number // 2) % 97 == 96,
                },
                "extra": extra,
                **at(number + 0.9, 0.1),
            }
        )
    return steps[:count]


def _is_grade(step):
    call = step.get("task_call") or {}
    return call.get("phase") == "evaluate" and isinstance(call.get("result"), dict)
