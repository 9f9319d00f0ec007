"""From what the SDK sent to what an error tracker keeps: issues, events and transactions."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from typing import Any

from hud_benchmarks.incident_lab.lab.ingest import Ingest
from hud_benchmarks.incident_lab.lab.recording import Recording, clock

MOST_EVENTS = 12
"""Events kept of an issue; all are counted."""
MOST_TRANSACTIONS = 150

FRAME = "shop/frame.py"
"""File that all services share; errors come through it, not from it."""


def add_events(recording: Recording, ingest: Ingest) -> None:
    """Add what arrived: events grouped into issues by service, error and place."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for event in ingest.taken("event"):
        if event.get("exception", {}).get("values"):
            error = _error(event)
            place = _place(error)
            key: tuple[str, ...] = (
                _service(event),
                str(error["type"]),
                f"{place.get('filename')}:{place.get('function')}",
            )
            if error["type"] == "UpstreamError":  # Told apart by whom they blame.
                key = (*key, str(error.get("value")).split(":")[0].split(" ")[0])
            groups[key].append(event)
    for key, events in groups.items():
        _add_issue(recording, key, events)
    for event in ingest.taken("transaction")[-MOST_TRANSACTIONS:]:
        _add_transaction(recording, event)


def _add_issue(recording: Recording, key: tuple[str, ...], events: list[dict[str, Any]]) -> None:
    name = hashlib.sha1("|".join(key).encode()).hexdigest()[:6].upper()
    issue = f"{key[0].upper()}-{name}"
    error = _error(events[-1])
    recording.add(
        "issues", issue=issue, service=key[0], error=str(error["type"]),
        message=_line(error.get("value"))[:200], place=key[2], events=len(events), level="error",
        first_seen=_time(events[0]), last_seen=_time(events[-1]), status="unresolved",
        first_release=str(events[0].get("release")), last_release=str(events[-1].get("release")),
    )  # fmt: skip
    for event in [*events[:2], *events[2:][-(MOST_EVENTS - 2) :]]:
        error = _error(event)
        recording.add(
            "events", event=event["event_id"][:12], issue=issue, time=_time(event), service=key[0],
            release=str(event.get("release")), container=str(event.get("server_name")),
            transaction_name=str(event.get("transaction")), error=str(error["type"]),
            message=_line(error.get("value"))[:300],
            trace=str(event.get("contexts", {}).get("trace", {}).get("trace_id"))[:12],
            url=str(event.get("request", {}).get("url", "")).split("?")[0].split("/", 3)[-1],
        )  # fmt: skip
    last = events[-1]
    for link in last["exception"]["values"]:
        for position, frame in enumerate(link.get("stacktrace", {}).get("frames", [])):
            if str(frame.get("filename", "")).startswith("shop/") and frame["filename"] != FRAME:
                context = [*frame.get("pre_context", []), ">" + str(frame.get("context_line", "")),
                           *frame.get("post_context", [])]  # fmt: skip
                recording.add(
                    "frames", issue=issue, error=str(link["type"]), position=position,
                    file=frame["filename"], function=frame.get("function"), line=frame.get("lineno"),
                    code="\n".join(context),
                    variables={name: str(value)[:120] for name, value in (frame.get("vars") or {}).items()},
                )  # fmt: skip
    for crumb in (last.get("breadcrumbs") or {}).get("values", [])[-8:]:
        recording.add(
            "breadcrumbs", issue=issue, category=crumb.get("category"),
            message=str(crumb.get("message") or crumb.get("data"))[:200],
        )  # fmt: skip


def _add_transaction(recording: Recording, event: dict[str, Any]) -> None:
    trace = event.get("contexts", {}).get("trace", {})
    began, ended = _seconds(event["start_timestamp"]), _seconds(event["timestamp"])
    name = str(trace.get("trace_id"))[:12]
    recording.add(
        "transactions", trace=name, time=clock(began), service=_service(event),
        name=str(event.get("transaction")), status=str(trace.get("status")),
        milliseconds=round(1000 * (ended - began), 1),
    )  # fmt: skip
    spans = sorted(event.get("spans", []), key=lambda span: span["start_timestamp"])
    for span in sorted(spans, key=_length, reverse=True)[:6]:
        recording.add(
            "spans", trace=name, service=_service(event), operation=span.get("op"),
            description=str(span.get("description"))[:160], milliseconds=round(1000 * _length(span), 1),
        )  # fmt: skip


def _error(event: dict[str, Any]) -> dict[str, Any]:
    error: dict[str, Any] = event["exception"]["values"][-1]
    return error


def _place(error: dict[str, Any]) -> dict[str, Any]:
    frames = error.get("stacktrace", {}).get("frames", [])
    ours = [frame for frame in frames if str(frame.get("filename", "")).startswith("shop/")
            and frame.get("filename") != FRAME]  # fmt: skip
    place: dict[str, Any] = (ours or frames or [{}])[-1]
    return place


def _line(text: object) -> str:
    return " ".join(str(text).split())


def _service(event: dict[str, Any]) -> str:
    return str(event.get("release", "?")).split("@")[0]


def _time(event: dict[str, Any]) -> str:
    return clock(_seconds(event["timestamp"]))


def _length(span: dict[str, Any]) -> float:
    return _seconds(span["timestamp"]) - _seconds(span["start_timestamp"])


def _seconds(value: Any) -> float:
    if isinstance(value, int | float):
        return float(value)
    from datetime import datetime

    return datetime.fromisoformat(str(value).replace("Z", "+00:00")).timestamp()
