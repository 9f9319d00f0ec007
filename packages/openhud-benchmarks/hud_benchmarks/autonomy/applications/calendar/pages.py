"""Pages of the calendar."""

from __future__ import annotations

import re
from datetime import date, timedelta
from pathlib import Path

from starlette.responses import Response

from hud_benchmarks.autonomy.web.application import TODAY
from hud_benchmarks.autonomy.web.pages import Pages, Visit

EVENTS = "SELECT e.*, c.name AS calendar FROM events e JOIN calendars c ON c.id = e.calendar_id"
_TIME = re.compile(r"([01]\d|2[0-3]):[0-5]\d")
pages = Pages(
    "Calendar",
    Path(__file__).parent,
    navigation={"Week": "/", "Search": "/search", "New event": "/events/new"},
)


@pages.get("/")
def week(visit: Visit) -> Response:
    named = visit.query.get("from", "")
    first = date.fromisoformat(named) if named else TODAY
    first -= timedelta(days=first.weekday())
    days = []
    for day in (first + timedelta(days=n) for n in range(7)):
        events = visit.rows(f"{EVENTS} WHERE e.day = ? ORDER BY e.starts", day.isoformat())
        days.append((f"{day:%A}, {day.isoformat()}", events))
    return visit.page(
        "week.html",
        days=days,
        before=(first - timedelta(days=7)).isoformat(),
        after=(first + timedelta(days=7)).isoformat(),
    )


@pages.get("/search")
def search(visit: Visit) -> Response:
    query = visit.query
    text = f"%{query.get('text', '')}%"
    conditions = [
        "(e.title LIKE ? OR e.place LIKE ? OR e.id IN (SELECT event_id FROM guests WHERE name LIKE ?))"
    ]
    values = [text, text, text]
    if query.get("calendar"):
        conditions.append("c.id = ?")
        values.append(query["calendar"])
    where = " AND ".join(conditions)
    listing = visit.listing(f"{EVENTS} WHERE {where} ORDER BY e.day, e.starts", *values)
    return visit.page("search.html", listing=listing, calendars=_calendars(visit))


@pages.get("/events/new")
def new(visit: Visit) -> Response:
    return visit.page("edit.html", event=None, values={}, calendars=_calendars(visit))


@pages.post("/events/new")
def create(visit: Visit) -> Response:
    errors = _problems(visit.form)
    if errors:
        return visit.page(
            "edit.html",
            event=None,
            values=visit.form,
            calendars=_calendars(visit),
            errors=errors,
        )
    event = visit.insert("events", **_columns(visit.form))
    return visit.go(f"/events/{event}", "The event is created. Now invite guests.")


@pages.get("/events/{id:int}")
def event(visit: Visit) -> Response:
    return _event_page(visit)


@pages.get("/events/{id:int}/edit")
def edit(visit: Visit) -> Response:
    event = visit.row(f"{EVENTS} WHERE e.id = ?", visit.id)
    values = dict(event) | {"calendar": event["calendar_id"]}
    return visit.page("edit.html", event=event, values=values, calendars=_calendars(visit))


@pages.post("/events/{id:int}/edit")
def save(visit: Visit) -> Response:
    event = visit.row(f"{EVENTS} WHERE e.id = ?", visit.id)
    errors = _problems(visit.form)
    if errors:
        return visit.page(
            "edit.html",
            event=event,
            values=visit.form,
            calendars=_calendars(visit),
            errors=errors,
        )
    visit.update("events", visit.id, **_columns(visit.form))
    return visit.go(f"/events/{visit.id}", "Saved.")


@pages.post("/events/{id:int}/guests")
def invite(visit: Visit) -> Response:
    name = visit.form["guest"]
    if not name:
        return _event_page(visit, "Name a guest first.")
    visit.execute("INSERT OR IGNORE INTO guests (event_id, name) VALUES (?, ?)", visit.id, name)
    return visit.go(f"/events/{visit.id}", f"{name} is invited.")


@pages.post("/events/{id:int}/guests/remove")
def uninvite(visit: Visit) -> Response:
    name = visit.form["guest"]
    visit.execute("DELETE FROM guests WHERE event_id = ? AND name = ?", visit.id, name)
    return visit.go(f"/events/{visit.id}", f"{name} is not invited any more.")


@pages.get("/events/{id:int}/cancel")
def ask_cancel(visit: Visit) -> Response:
    return visit.page("cancel.html", event=visit.row(f"{EVENTS} WHERE e.id = ?", visit.id))


@pages.post("/events/{id:int}/cancel")
def cancel(visit: Visit) -> Response:
    event = visit.row(f"{EVENTS} WHERE e.id = ?", visit.id)
    visit.execute("DELETE FROM events WHERE id = ?", visit.id)
    return visit.go(f"/?from={event['day']}", f"{event['title']} is cancelled.")


def _event_page(visit: Visit, *errors: str) -> Response:
    return visit.page(
        "event.html",
        event=visit.row(f"{EVENTS} WHERE e.id = ?", visit.id),
        guests=visit.rows("SELECT name FROM guests WHERE event_id = ? ORDER BY name", visit.id),
        errors=list(errors),
    )


def _calendars(visit: Visit) -> list[tuple[int, str]]:
    """Options of the list of calendars."""
    return [(row["id"], row["name"]) for row in visit.rows("SELECT id, name FROM calendars")]


def _columns(form: dict[str, str]) -> dict[str, str]:
    """Columns of an event from its form."""
    names = ("title", "day", "starts", "ends", "place", "notes")
    return {name: form[name] for name in names} | {"calendar_id": form["calendar"]}


def _problems(form: dict[str, str]) -> list[str]:
    """Sentences on what is wrong with the form of an event."""
    errors = []
    if not form["title"]:
        errors.append("An event needs a title.")
    if not form["calendar"]:
        errors.append("Choose a calendar.")
    try:
        date.fromisoformat(form["day"])
    except ValueError:
        errors.append("The day is written as 2026-03-31.")
    if not (_TIME.fullmatch(form["starts"]) and _TIME.fullmatch(form["ends"])):
        errors.append("Times are written as 09:30.")
    elif form["ends"] <= form["starts"]:
        errors.append("An event ends after it starts.")
    return errors
