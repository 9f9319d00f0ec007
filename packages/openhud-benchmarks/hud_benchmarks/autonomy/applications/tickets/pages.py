"""Pages of the tracker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.responses import Response

from hud_benchmarks.autonomy.web.application import TODAY
from hud_benchmarks.autonomy.web.pages import Pages, Visit

STATUSES = ["open", "in progress", "closed"]
PRIORITIES = ["low", "normal", "high", "urgent"]
RESOLUTIONS = ["fixed", "duplicate", "cannot reproduce", "will not fix"]
TICKETS = """
    SELECT t.*, c.name AS component, p.name AS project, p.id AS project_id, a.name AS assignee, r.name AS reporter
    FROM tickets t JOIN components c ON c.id = t.component_id JOIN projects p ON p.id = c.project_id
    JOIN users r ON r.id = t.reporter_id LEFT JOIN users a ON a.id = t.assignee_id
"""
pages = Pages(
    "Tracker",
    Path(__file__).parent,
    navigation={"Projects": "/", "Tickets": "/tickets", "New ticket": "/tickets/new"},
)


@pages.get("/")
def projects(visit: Visit) -> Response:
    rows = visit.rows(
        "SELECT p.*, sum(t.status != 'closed') AS remaining FROM projects p JOIN components c ON c.project_id = p.id"
        " LEFT JOIN tickets t ON t.component_id = c.id GROUP BY p.id"
    )
    return visit.page("projects.html", projects=rows)


@pages.get("/projects/{id:int}")
def project(visit: Visit) -> Response:
    row = visit.row("SELECT * FROM projects WHERE id = ?", visit.id)
    components = visit.rows(
        "SELECT c.name, u.name AS owner FROM components c JOIN users u ON u.id = c.owner_id WHERE project_id = ?",
        visit.id,
    )
    return visit.page("project.html", project=row, components=components)


@pages.get("/tickets")
def tickets(visit: Visit) -> Response:
    query = visit.query
    text = f"%{query.get('text', '')}%"
    conditions, values = ["(t.title LIKE ? OR t.body LIKE ?)"], [text, text]
    if query.get("project"):
        conditions.append("p.id = ?")
        values.append(query["project"])
    if query.get("status"):
        conditions.append("t.status = ?")
        values.append(query["status"])
    if query.get("assignee") == "nobody":
        conditions.append("t.assignee_id IS NULL")
    elif query.get("assignee"):
        conditions.append("t.assignee_id = ?")
        values.append(query["assignee"])
    where = " AND ".join(conditions)
    listing = visit.listing(f"{TICKETS} WHERE {where} ORDER BY t.id DESC", *values)
    return visit.page("tickets.html", listing=listing, **_choices(visit))


@pages.get("/tickets/new")
def new_ticket(visit: Visit) -> Response:
    return visit.page("edit.html", ticket=None, values={"priority": "normal"}, **_choices(visit))


@pages.post("/tickets/new")
def create_ticket(visit: Visit) -> Response:
    form = visit.form
    errors = _problems(visit)
    if errors:
        return visit.page("edit.html", ticket=None, values=form, errors=errors, **_choices(visit))
    ticket = visit.insert(
        "tickets",
        **_columns(form),
        status="open",
        reporter_id=visit.user,
        opened=TODAY.isoformat(),
    )
    return visit.go(f"/tickets/{ticket}", f"Ticket {ticket} is created.")


@pages.get("/tickets/{id:int}")
def ticket(visit: Visit) -> Response:
    return _ticket_page(visit)


@pages.get("/tickets/{id:int}/edit")
def edit(visit: Visit) -> Response:
    ticket = visit.row(f"{TICKETS} WHERE t.id = ?", visit.id)
    values = dict(ticket) | {
        "component": ticket["component_id"],
        "assignee": ticket["assignee_id"] or "",
        "parent": ticket["parent_id"] or "",
    }
    return visit.page("edit.html", ticket=ticket, values=values, **_choices(visit))


@pages.post("/tickets/{id:int}/edit")
def save(visit: Visit) -> Response:
    ticket = visit.row(f"{TICKETS} WHERE t.id = ?", visit.id)
    form = visit.form
    errors = _problems(visit)
    if errors:
        return visit.page("edit.html", ticket=ticket, values=form, errors=errors, **_choices(visit))
    status = ticket["status"] if ticket["status"] == "closed" else form["status"]
    visit.update("tickets", visit.id, **_columns(form), status=status)
    return visit.go(f"/tickets/{visit.id}", "Saved.")


@pages.post("/tickets/{id:int}/comments")
def comment(visit: Visit) -> Response:
    if not visit.form.get("comment"):
        return _ticket_page(visit, "Write a comment first.")
    visit.insert("comments", ticket_id=visit.id, author_id=visit.user, body=visit.form["comment"])
    return visit.go(f"/tickets/{visit.id}", "The comment is added.")


@pages.post("/tickets/{id:int}/labels")
def add_label(visit: Visit) -> Response:
    name = visit.form.get("label", "").lower()
    if not name:
        return _ticket_page(visit, "Name a label first.")
    visit.execute("INSERT OR IGNORE INTO labels (ticket_id, name) VALUES (?, ?)", visit.id, name)
    return visit.go(f"/tickets/{visit.id}", f"Label {name} is set.")


@pages.post("/tickets/{id:int}/labels/remove")
def remove_label(visit: Visit) -> Response:
    name = visit.form["label"]
    visit.execute("DELETE FROM labels WHERE ticket_id = ? AND name = ?", visit.id, name)
    return visit.go(f"/tickets/{visit.id}", f"Label {name} is removed.")


@pages.get("/tickets/{id:int}/close")
def close(visit: Visit) -> Response:
    ticket = visit.row(f"{TICKETS} WHERE t.id = ?", visit.id)
    return visit.page("close.html", ticket=ticket, values={}, resolutions=RESOLUTIONS)


@pages.post("/tickets/{id:int}/close")
def confirm_close(visit: Visit) -> Response:
    """Show what closing will do; the second form of that page does it."""
    ticket = visit.row(f"{TICKETS} WHERE t.id = ?", visit.id)
    resolution = visit.form.get("resolution", "")
    named = visit.form.get("duplicate_of", "")
    original = visit.rows(
        f"{TICKETS} WHERE t.id = ? AND t.id != ?",
        int(named) if named.isdecimal() else 0,
        visit.id,
    )
    errors = []
    if resolution not in RESOLUTIONS:
        errors.append("Choose a resolution.")
    if resolution == "duplicate" and not original:
        errors.append("Give the number of the other ticket.")
    if resolution != "duplicate" and named:
        errors.append("Only a duplicate has another ticket.")
    if errors:
        return visit.page(
            "close.html", ticket=ticket, values=visit.form, resolutions=RESOLUTIONS, errors=errors
        )  # fmt: skip
    if visit.form.get("confirmed") != "yes":
        return visit.page(
            "confirm_close.html", ticket=ticket, resolution=resolution, original=original
        )
    visit.update(
        "tickets",
        visit.id,
        status="closed",
        resolution=resolution,
        duplicate_of=original[0]["id"] if resolution == "duplicate" else None,
    )
    return visit.go(f"/tickets/{visit.id}", f"Ticket {visit.id} is closed.")


@pages.post("/tickets/{id:int}/reopen")
def reopen(visit: Visit) -> Response:
    visit.update("tickets", visit.id, status="open", resolution="", duplicate_of=None)
    return visit.go(f"/tickets/{visit.id}", f"Ticket {visit.id} is open again.")


def _ticket_page(visit: Visit, error: str | None = None) -> Response:
    return visit.page(
        "ticket.html",
        errors=[error] if error else [],
        ticket=visit.row(f"{TICKETS} WHERE t.id = ?", visit.id),
        labels=visit.rows("SELECT name FROM labels WHERE ticket_id = ? ORDER BY name", visit.id),
        children=visit.rows("SELECT id, title FROM tickets WHERE parent_id = ?", visit.id),
        comments=visit.rows(
            "SELECT c.body, u.name AS author FROM comments c JOIN users u ON u.id = c.author_id"
            " WHERE ticket_id = ? ORDER BY c.id",
            visit.id,
        ),
    )


def _choices(visit: Visit) -> dict[str, list[Any]]:
    """Options of the lists in forms."""
    users = visit.rows("SELECT id, name FROM users ORDER BY name")
    components = visit.rows(
        "SELECT c.id, p.name || ' / ' || c.name FROM components c JOIN projects p ON p.id = c.project_id ORDER BY 2"
    )
    return {
        "users": [tuple(row) for row in users],
        "projects": [tuple(row) for row in visit.rows("SELECT id, name FROM projects")],
        "components": [tuple(row) for row in components],
        "statuses": STATUSES,
        "priorities": PRIORITIES,
    }


def _columns(form: dict[str, str]) -> dict[str, Any]:
    """Columns of a ticket from its form."""
    return {
        "component_id": form["component"],
        "title": form["title"],
        "body": form["body"],
        "priority": form["priority"],
        "milestone": form["milestone"],
        "assignee_id": form["assignee"] or None,
        "parent_id": form["parent"] or None,
    }


def _problems(visit: Visit) -> list[str]:
    """Sentences on what is wrong with the form of a ticket."""
    form = visit.form
    errors = []
    if not form["title"]:
        errors.append("A ticket needs a title.")
    if not form["component"]:
        errors.append("Choose a component.")
    if form["priority"] not in PRIORITIES:
        errors.append("Choose a priority.")
    if form["parent"] and not visit.rows("SELECT 1 FROM tickets WHERE id = ?", form["parent"]):
        errors.append(f"There is no ticket {form['parent']}.")
    return errors
