"""Pages of human baselines: choosing a task, playing it, and its score.
The template of a tool depends on its kind (`FRONTS`): a shell and a screen have their own, every other tool is a form
generated from its schema. A spreadsheet is also shown as a grid.
"""

from __future__ import annotations

import base64
from statistics import fmean, median
from typing import Annotated, Any

from fastapi import Depends, Form, Request, Response

from hud.agents.human import HUMAN_SECONDS
from hud.environment.tools.spreadsheet import READ, WRITE, is_spreadsheet
from hud.errors import ConflictError, NotFoundError, UsageError
from hud.trace import TextContent, ToolSpec, plain
from hud_dashboard.events import Following, Revision
from hud_dashboard.human_baseline.grid import MOST_CELLS, as_page, edits, last_grid
from hud_dashboard.human_baseline.jobs import scores
from hud_dashboard.human_baseline.screen import screen_arguments
from hud_dashboard.human_baseline.session import (
    BaselineSession,
    Move,
    Order,
    pictures,
)
from hud_dashboard.human_baseline.session_registry import SessionRegistry
from hud_dashboard.page import Data, Offset, Pages, Rows, paged, see
from hud_dashboard.rendering import page
from hud_dashboard.schema_forms import fields_of, read_arguments
from hud_dashboard.state import state_part
from hud_dashboard.trace.values import as_json
from hud_platform.access import Identity
from hud_platform.dependencies import StorePart, Who
from hud_platform.store import Store, records
from hud_platform.store.tables import LOCAL_TEAM
from hud_platform.tasksets.rows import TasksetRows
from hud_platform.tasksets.versions import Tasksets

router = Pages()
PER_PAGE = 50
MOST_SHOWN = 100
"""Maximum number of moves shown on a session's page, newest first."""
MOST_CHARACTERS = 200_000
"""Maximum length of an answer."""
MOST_FIELD_BYTES = 4 * MOST_CHARACTERS
FRONTS = {"bash": "parts/baseline_shell.html", "computer": "parts/baseline_screen.html"}
"""Template by a tool's `native` kind."""
FORM = "parts/baseline_form.html"
_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")
SessionsPart = Annotated[SessionRegistry, state_part(lambda state: state.baseline_sessions)]


async def _open(sessions: SessionsPart, who: Who, sitting_id: str) -> BaselineSession | None:
    return next(
        (session for session in _mine(sessions, who) if session.id == plain(sitting_id)), None
    )


async def _own(sessions: SessionsPart, who: Who, sitting_id: str) -> BaselineSession:
    return sessions.find(who.team_id, _user(who), sitting_id)


Open = Annotated[BaselineSession | None, Depends(_open)]
"""The caller's own session; None if it is over."""
Own = Annotated[BaselineSession, Depends(_own)]
"""The caller's own session; an error if it is over."""


@router.page("/baseline", "baseline.html")
def baseline(store: StorePart, sessions: SessionsPart, who: Who, offset: Offset = 0) -> Data:
    """The tasksets to choose from, and the caller's open sessions."""
    items, total = Tasksets(store, who.team_id).page(None, PER_PAGE, offset)
    for item in items:
        item.update(_summary(scores(store, who.team_id, item["id"])))
    return {
        "items": items,
        "sittings": [_short(session) for session in _mine(sessions, who)],
        **paged(total, PER_PAGE, offset),
    }


@router.page("/baseline/{taskset_id}", "baseline_tasks.html")
def tasks(
    store: StorePart, sessions: SessionsPart, who: Who, rows: Rows, offset: Offset = 0
) -> Data:
    """The tasks of a taskset, with people's results."""
    slugs = rows.slugs()
    scores_by_task = scores(store, who.team_id, rows.taskset["id"])
    open_here = {
        session.slug: session.id
        for session in _mine(sessions, who)
        if session.taskset["id"] == rows.taskset["id"]
    }
    items = [
        {
            "slug": row["name"],
            "env": row["env"],
            "runs": scores_by_task.get(row["name"], [])[:5],
            "sitting": open_here.get(row["name"]),
            **_summary({row["name"]: scores_by_task.get(row["name"], [])}),
        }
        for row in rows.named(slugs[offset : offset + PER_PAGE])
    ]
    return {
        "taskset": rows.taskset,
        "items": items,
        "summary": _summary(scores_by_task),
        **paged(len(slugs), PER_PAGE, offset),
    }


@router.action("/baseline/{taskset_id}/begin", "run")
async def begin(
    sessions: SessionsPart, who: Who, rows: Rows, slug: Annotated[str, Form()]
) -> Response:
    """Start a session for a task."""
    session = await sessions.begin(who.team_id, _user(who), rows.taskset, rows.get(slug))
    return see(f"/baseline/sitting/{session.id}")


@router.page("/baseline/sitting/{sitting_id}", "baseline_sitting.html")
def session_page(
    request: Request, store: StorePart, who: Who, session: Open, sitting_id: str
) -> Response | Data:
    """The page of a session; after its end, the score."""
    if session is None:
        return page(request, "baseline_over.html", _over(store, who, sitting_id))
    session.touch()
    return {
        "id": session.id,
        "slug": session.slug,
        "taskset": session.taskset,
        "state": session.state,
        "revision": session.revision,
        "said": session.error,
        "prompt": session.run.prompt_text if session.ready_at else "",
        "ready_at": None if session.ready_at is None else session.ready_at.isoformat(),
        "tools": _tools(session) if session.ready_at else [],
        "grid": _grid(session) if session.ready_at else None,
        "moves": [_move(move) for move in reversed(session.moves[-MOST_SHOWN:])],
        "moves_total": len(session.moves),
    }


@router.events("/events/baseline/{sitting_id}")
def session_events(session: Open, sitting_id: str) -> Following:
    """Event stream of a session's states and moves; an open stream counts as an open page."""

    def read() -> Revision:
        if session is None or session.state == "over":
            return Revision("over", over=True)
        session.touch()
        return Revision(session.revision)

    return ("sitting", plain(sitting_id), session is None), read


@router.get("/baseline/sitting/{sitting_id}/here")
def here(session: Open) -> Response:
    """Keep-alive of an open page."""
    if session is not None:
        session.touch()
    return Response(status_code=204)


@router.get("/baseline/sitting/{sitting_id}/pictures/{move}/{number}")
def picture(session: Open, move: int, number: int) -> Response:
    """An image in a move's result."""
    if session is None or not 1 <= move <= len(session.moves):
        raise NotFoundError("There is no such picture.")
    shown = pictures(session.moves[move - 1])
    if not 0 <= number < len(shown) or shown[number].mime_type not in _PICTURES:
        raise NotFoundError("There is no such picture.")
    content = base64.b64decode(shown[number].data)
    headers = {"cache-control": "private, max-age=3600"}
    return Response(content, media_type=shown[number].mime_type, headers=headers)


@router.action("/baseline/sitting/{sitting_id}/call", "run")
async def call(request: Request, session: Own) -> Response:
    """Call a tool with the arguments in its form."""
    form = await request.form(max_part_size=MOST_FIELD_BYTES)
    try:
        tool = _named(session, str(form.get("tool") or ""))
        if tool.native == "computer":
            arguments = screen_arguments(tool, form)
        else:
            arguments = read_arguments(tool.parameters, form)
        await session.give(Order("call", tool.name, arguments))
    except (UsageError, ConflictError) as error:
        session.error = str(error)
    return see(f"/baseline/sitting/{session.id}")


@router.action("/baseline/sitting/{sitting_id}/grid", "run")
async def write_grid(request: Request, session: Own) -> Response:
    """Write the cells of a spreadsheet that were changed, and read the sheet again; or open a sheet."""
    form = await request.form(max_fields=MOST_CELLS + 10, max_part_size=MOST_FIELD_BYTES)
    grid = last_grid(session.moves)
    try:
        if grid is None:
            raise UsageError("Open a sheet first.")
        opened = form.get("open")
        calls = [] if opened else edits(grid, form)
        if not (opened or calls):
            raise UsageError("No cell was changed.")
        for arguments in calls:
            await session.give(Order("call", WRITE, arguments))
        look = {"sheet": str(opened or grid.sheet), "show": str(form.get("show") or grid.show)}
        await session.give(Order("call", READ, look))
    except (UsageError, ConflictError) as error:
        session.error = str(error)
    return see(f"/baseline/sitting/{session.id}")


@router.action("/baseline/sitting/{sitting_id}/answer", "run")
async def answer(request: Request, session: Own) -> Response:
    """Submit an answer, or give up; both end the session."""
    form = await request.form(max_part_size=MOST_FIELD_BYTES)
    text = str(form.get("answer") or "").replace("\r\n", "\n")
    given_up = form.get("give_up") is not None
    try:
        if not given_up and not text.strip():
            raise UsageError("Write an answer, or give up.")
        if len(text) > MOST_CHARACTERS:
            raise UsageError(f"An answer has at most {MOST_CHARACTERS:,} characters.")
        await session.give(Order("give up") if given_up else Order("answer", text=text))
    except (UsageError, ConflictError) as error:
        session.error = str(error)
    return see(f"/baseline/sitting/{session.id}")


@router.action("/baseline/sitting/{sitting_id}/leave", "run")
async def leave(sessions: SessionsPart, session: Own) -> Response:
    """Leave without an answer: no score is recorded."""
    await sessions.leave(session)
    return see(f"/baseline/{session.taskset['id']}")


def _over(store: Store, who: Identity, sitting_id: str) -> Data:
    run = records.find_run(store, who.team_id, sitting_id)
    extra = run["extra"] or {}
    if extra.get("user_id") != _user(who):
        raise NotFoundError(f"You have no session {sitting_id!r}: it is over, or another user's.")
    job = records.find_job(store, who.team_id, run["job_id"])
    taskset = Tasksets(store, who.team_id).find(job["taskset_id"])
    following = TasksetRows(store, who.team_id, taskset["id"]).slugs()
    place = following.index(run["slug"]) + 1 if run["slug"] in following else 0
    names = ("id", "slug", "status", "reward", "error", "content", "job_id")
    return {
        **{name: run[name] for name in names},
        "seconds": extra.get(HUMAN_SECONDS),
        "taskset": taskset,
        "next": following[place] if place < len(following) else None,
        "subscores": _subscores(run["grade"]),
    }


def _subscores(grade: Any) -> list[dict[str, Any]]:
    subscores = grade.get("subscores") if isinstance(grade, dict) else None
    if isinstance(subscores, dict):
        return [{"name": name, "value": value} for name, value in subscores.items()]
    if not isinstance(subscores, list):
        return []
    return [
        {
            "name": str(subscore.get("name") or ""),
            "value": subscore.get("value", subscore.get("score")),
        }
        for subscore in subscores
        if isinstance(subscore, dict)
    ]


def _tools(session: BaselineSession) -> list[dict[str, Any]]:
    """Return the tools in the order of the page: a screen, the environment's own tools, the shell, the editor."""
    places = {"computer": 0, "bash": 2, "editor": 3}
    ordered = sorted(session.tools, key=lambda tool: places.get(tool.native or "", 1))
    return [_tool(session, tool) for tool in ordered]


def _tool(session: BaselineSession, tool: ToolSpec) -> dict[str, Any]:
    screen = next(
        (move for move in reversed(session.moves) if move.tool == tool.name and pictures(move)),
        None,
    )
    return {
        "name": tool.name,
        "description": tool.description,
        "native": tool.native,
        "front": FRONTS.get(tool.native or "", FORM),
        "fields": [
            {**vars(field), "field_name": field.field_name} for field in fields_of(tool.parameters)
        ],
        "options": tool.options,
        "screen": None
        if screen is None
        else f"/baseline/sitting/{session.id}/pictures/{screen.number}/0",
    }


def _grid(session: BaselineSession) -> dict[str, Any] | None:
    grid = last_grid(session.moves) if is_spreadsheet(session.tools) else None
    return None if grid is None else as_page(grid)


def _move(move: Move) -> dict[str, Any]:
    texts = [block.text for block in move.result.content if isinstance(block, TextContent)]
    if not texts and not pictures(move) and move.result.structured_content is not None:
        texts = [as_json(move.result.structured_content)]
    return {
        "number": move.number,
        "tool": move.tool,
        "arguments": move.arguments,
        "text": "\n".join(texts),
        "pictures": len(pictures(move)),
        "is_error": move.result.is_error,
        "seconds": move.seconds,
    }


def _summary(scores_by_task: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Summarize people's runs: each task counts once, with its mean score."""
    means, times, count = [], [], 0
    for runs in scores_by_task.values():
        rewards = [run["reward"] for run in runs if run["reward"] is not None]
        count += len(rewards)
        if rewards:
            means.append(fmean(rewards))
        times += [run["seconds"] for run in runs if run["seconds"] and run["reward"] is not None]
    return {
        "taken": len(means),
        "scored": count,
        "reward": fmean(means) if means else None,
        "seconds": median(times) if times else None,
    }


def _short(session: BaselineSession) -> dict[str, Any]:
    return {
        "id": session.id,
        "slug": session.slug,
        "taskset": session.taskset["name"],
        "state": session.state,
        "started_at": session.run.started_at.isoformat(),
    }


def _mine(sessions: SessionRegistry, who: Identity) -> list[BaselineSession]:
    return sessions.of_person(who.team_id, _user(who))


def _named(session: BaselineSession, name: str) -> ToolSpec:
    for tool in session.tools:
        if tool.name == name:
            return tool
    raise UsageError(f"There is no tool {name!r} here.")


def _user(who: Identity) -> str:
    return who.user_id or LOCAL_TEAM
