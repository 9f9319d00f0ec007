"""Pages of one run: steps, timeline, images, tokens, spans, and the comparison with another run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Depends, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from hud import exact_json
from hud_dashboard.events import Following, Revision
from hud_dashboard.page import Data, Pages, paged, see
from hud_dashboard.queries import trace_windows
from hud_dashboard.queries.subject_labels import labels_of
from hud_dashboard.queries.trace_windows import Window
from hud_dashboard.rendering import page
from hud_dashboard.trace.changes import changed_files
from hud_dashboard.trace.comparison import (
    ROWS,
    common_prefix,
    comparison_rows,
    measures,
    subscores,
)
from hud_dashboard.trace.image_headers import raster
from hud_dashboard.trace.images import image_bytes
from hud_dashboard.trace.page import (
    COLOURS,
    colour_notice,
    find_numbered,
    head_of,
    plain_run,
    revision_of,
    shown_nested,
    shown_window,
)
from hud_dashboard.trace.timeline import marks, timeline
from hud_dashboard.trace.values import as_json, dict_of, moment_of, whole_json
from hud_platform.dependencies import Models, StorePart, Team
from hud_platform.store import Store, records
from hud_platform.store.outcomes import outcomes_of

router = Pages()
KEPT = "private, max-age=31536000, immutable"
SPANS_PER_PAGE = 50
_LAST = 2**31 - 1

Number = Annotated[int, Query(ge=0, le=_LAST)]
Colour = Annotated[str | None, Query(pattern=f"^({'|'.join(COLOURS)})?$")]
Hash = Annotated[str, Path(pattern="^[0-9a-f]{64}$")]


def _run(store: StorePart, team: Team, trace_id: str) -> dict[str, Any]:
    return records.find_run(store, team, trace_id)


Run = Annotated[dict[str, Any], Depends(_run)]


@router.get("/traces")
@router.get("/trace")
def all_traces() -> Response:
    """Redirect to the jobs, which list their runs."""
    return see("/jobs")


@router.get("/traces/{trace_id}")
def other_address(trace_id: str) -> Response:
    """Redirect from the address that some clients print."""
    return see(f"/trace/{quote(trace_id, safe='')}")


@router.page("/trace/{trace_id}", "trace.html")
def trace(registry: Models, run: Run, step: Number | None = None, tokens: Colour = None) -> Data:
    """The run as a conversation: one window of steps, and placeholders for the other windows."""
    windows = trace_windows.windows(registry.store, run["trace_id"])
    wanted = _window_of(windows, step)
    parts = [
        {
            "first": window.first,
            "last": window.last,
            "count": window.count,
            "steps": shown_window(registry, run, window, tokens) if window == wanted else None,
        }
        for window in windows
    ]
    return {
        **head_of(registry.store, run),
        "outcomes": outcomes_of(registry.store, run["trace_id"]),
        "labels": labels_of(registry.store, run["team_id"], "run", run["trace_id"]),
        "windows": parts,
        "step_count": sum(window.count for window in windows),
        "last": windows[-1].last if windows else -1,
        "colour": tokens or None,
        "colour_notice": colour_notice(registry, run, tokens),
    }


@router.get("/trace/{trace_id}/steps")
def steps(
    request: Request,
    registry: Models,
    run: Run,
    first: Number = 0,
    last: Number = _LAST,
    tokens: Colour = None,
) -> Response:
    """Steps for an open page: those of a window, or new ones of a live run."""
    shown = shown_window(registry, run, Window(first, last, 0), tokens)
    data = {"steps": shown, "run": run, "colour": tokens or None}
    return page(request, "trace_window.html", data)


@router.get("/trace/{trace_id}/head")
def head(request: Request, store: StorePart, run: Run) -> Response:
    """The head of a run's page, for an open page of a live run."""
    data = head_of(store, run)
    return page(request, "trace_head.html", data)


@router.page("/trace/{trace_id}/timeline", "trace_timeline.html")
def trace_timeline(store: StorePart, run: Run) -> Data:
    """The timeline: steps by time, failures, screenshots."""
    drawn = marks(trace_windows.every_step(store, run["trace_id"]))
    view = timeline(drawn, moment_of(run["started_at"]))
    return {"timeline": view, "trace_id": run["trace_id"]}


@router.get("/trace/{trace_id}/steps/{number}.json")
def raw_step(store: StorePart, run: Run, number: str) -> Response:
    """The stored payload of a step, with its tokens."""
    payload = find_numbered(store, run, number)
    if number.isdecimal():
        payload = _with_tokens(store, run["trace_id"], int(number), payload)
    return Response(whole_json(payload), media_type="application/json")


@router.get("/trace/{trace_id}/raw.json")
def raw_trace(store: StorePart, run: Run) -> Response:
    """The run and the stored payloads of all its steps; large attachments are names of blobs."""

    def parts() -> Iterator[bytes]:
        yield b'{"run":' + whole_json(plain_run(run)) + b',"steps":['
        separator = b""
        for number, payload in trace_windows.every_step(store, run["trace_id"]):
            with_tokens = _with_tokens(store, run["trace_id"], number, payload)
            yield separator + whole_json(with_tokens)
            separator = b",\n"
        yield b"]}"

    return StreamingResponse(parts(), media_type="application/json")


@router.get("/trace/{trace_id}/steps/{number}/nested")
def nested(
    request: Request, store: StorePart, run: Run, number: str, offset: Number = 0
) -> Response:
    """The run nested in a step, as a part of the page."""
    shown, total = shown_nested(run, find_numbered(store, run, number), number, offset)
    data = {"steps": shown, "run": run, "number": number, "total": total}
    more = offset + len(shown)
    return page(request, "trace_nested.html", {**data, "next": more if more < total else None})


@router.get("/trace/{trace_id}/steps/{number}/image/{name}")
def image(request: Request, store: StorePart, run: Run, number: int, name: Hash) -> Response:
    """An image of a step, if a browser may show it: never an SVG, and only with a valid header."""
    if request.headers.get("if-none-match") == f'"{name}"':
        return Response(status_code=304, headers={"cache-control": KEPT})
    payload = trace_windows.find_step(store, run["trace_id"], number)
    data = image_bytes(store, run["team_id"], payload, name)
    image_type = raster(data)
    headers = {
        "cache-control": KEPT,
        "etag": f'"{name}"',
        "content-disposition": f'inline; filename="step-{number}-{name[:8]}.{image_type.extension}"',
        # Images are compressed already.
        "content-encoding": "identity",
    }
    return Response(data, media_type=image_type.media_type, headers=headers)


@router.get("/trace/{trace_id}/compare")
def choose_rival(trace_id: str, other: str) -> Response:
    """Redirect to the comparison of two runs, from the form of a run's page."""
    return see(f"/trace/{quote(trace_id, safe='')}/compare/{quote(other, safe='')}")


@router.page("/trace/{trace_id}/compare/{other_id}", "trace_comparison.html")
def compare_runs(
    request: Request, store: StorePart, run: Run, team: Team, other_id: str, offset: Number = 0
) -> Response | Data:
    """Compare two runs of one task: their results, and their steps from the first difference."""
    first, other = run, records.find_run(store, team, other_id)
    same = common_prefix(store, first, other)
    rows, more = comparison_rows(store, first, other, same, offset)
    data = {
        "one": plain_run(first),
        "other": plain_run(other),
        "same": same,
        "rows": rows,
        "next": offset + ROWS if more else None,
        "measures": measures(first, other),
        "subscores": subscores(first, other),
    }
    return page(request, "trace_comparison_rows.html", data) if offset else data


@router.page("/trace/{trace_id}/spans", "trace_spans.html")
def spans(store: StorePart, run: Run, offset: Number = 0) -> Data:
    """Spans of clients that are not steps: robots, changed files, timed functions."""
    team = run["team_id"]
    items, total = records.trace_spans(store, team, run["trace_id"], SPANS_PER_PAGE, offset)
    shown = [_span(item) for item in items]
    plain = plain_run(run)
    named = {name: plain[name] for name in ("trace_id", "slug", "label")}
    return {"run": named, "items": shown, **paged(total, SPANS_PER_PAGE, offset)}


@router.events("/events/trace/{trace_id}")
def events(store: StorePart, run: Run) -> Following:
    """Event stream of a run's changes."""
    team, trace_id = run["team_id"], run["trace_id"]

    def read() -> Revision:
        return Revision(*revision_of(store, team, trace_id))

    return ("trace", team, trace_id), read


def _window_of(windows: list[Window], step: int | None) -> Window | None:
    if not windows:
        return None
    if step is None:
        return windows[0]
    return next((window for window in windows if step <= window.last), windows[-1])


def _with_tokens(
    store: Store, trace_id: str, number: int, payload: dict[str, Any]
) -> dict[str, Any]:
    drawn = trace_windows.drawn_between(store, trace_id, number, number).get(number)
    if drawn is None:
        return payload
    recorded = payload.get("sample")
    sample = {
        **(recorded if isinstance(recorded, dict) else {}),
        "output_token_ids": drawn.ids,
        "output_logprobs": drawn.logprobs,
        "checkpoint": drawn.checkpoint,
        "swaps": drawn.swaps,
        "temperature": drawn.temperature,
    }
    return {**payload, "sample": sample}


def _span(span: dict[str, Any]) -> dict[str, Any]:
    attributes = dict_of(span.get("attributes"))
    return {
        "name": span.get("name"),
        "schema": attributes.get("hud.schema"),
        "start": span.get("start_time"),
        "end": span.get("end_time"),
        "status": span.get("status_message"),
        "files": changed_files({"files": _payload(attributes)}),
        "json": as_json(span),
    }


def _payload(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return the payload of a span, which some clients send as JSON within JSON."""
    recorded = attributes.get("hud.payload")
    if isinstance(recorded, str):
        try:
            recorded = exact_json.loads(recorded)
        except exact_json.JSONDecodeError:
            return {}
    return dict_of(recorded)
