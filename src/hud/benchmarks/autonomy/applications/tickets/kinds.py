"""Kinds of tasks in the tracker."""

from __future__ import annotations

import sqlite3
from random import Random
from typing import TYPE_CHECKING, Any

from hud.benchmarks.autonomy.web.application import Goal, Kind
from hud.benchmarks.autonomy.web.rows import insert

if TYPE_CHECKING:
    from hud.benchmarks.autonomy.web.hands import Hands

TICKETS = """
    SELECT t.*, c.name AS component, p.name AS project, o.name AS owner, u.name AS assignee
    FROM tickets t JOIN components c ON c.id = t.component_id JOIN projects p ON p.id = c.project_id
    JOIN users o ON o.id = c.owner_id LEFT JOIN users u ON u.id = t.assignee_id
"""


# -- triage ---------------------------------------------------------------------------------------


def _triage(db: sqlite3.Connection, random: Random) -> Goal:
    project = _project(db, random)
    tickets = db.execute(
        f"{TICKETS} WHERE p.name = ? AND t.assignee_id IS NULL AND t.status = 'open'", (project,)
    ).fetchall()
    plan = {
        row["title"]: (row["owner"], "urgent" if "crashes" in row["title"] else "low")
        for row in tickets
    }

    def apply(after: sqlite3.Connection) -> None:
        for title, (owner, priority) in plan.items():
            after.execute(
                "UPDATE tickets SET priority = ?, assignee_id = (SELECT id FROM users WHERE name = ?) WHERE title = ?",
                (priority, owner, title),
            )

    return Goal(
        f"Triage the open tickets of the project {project} that are assigned to nobody. Assign each to the owner of "
        "its component, whom the project's page names. Set the priority of those whose title says that something "
        "crashes to urgent, and of all others to low.",
        apply,
        (project, plan),
    )


async def _do_triage(hands: Hands, plan: Any) -> None:
    project, tickets = plan
    await hands.click("Projects")
    await hands.click(project)
    for title, (owner, priority) in tickets.items():
        await _find(hands, title)
        await hands.click("Edit")
        await hands.choose("Assignee", owner)
        await hands.choose("Priority", priority)
        await hands.click("Save ticket")


# -- duplicates -----------------------------------------------------------------------------------


def _duplicates(db: sqlite3.Connection, random: Random) -> Goal:
    project = _project(db, random)
    code, first = db.execute(
        "SELECT substr(t.body, instr(t.body, 'E-')) AS code, min(t.id) FROM tickets t"
        " JOIN components c ON c.id = t.component_id JOIN projects p ON p.id = c.project_id"
        " WHERE p.name = ? GROUP BY code HAVING count(*) > 1",
        (project,),
    ).fetchone()
    (title,) = db.execute("SELECT title FROM tickets WHERE id = ?", (first,)).fetchone()
    later = [
        row["title"]
        for row in db.execute(
            "SELECT title FROM tickets WHERE body LIKE ? AND id != ?", (f"%{code}", first)
        )
    ]

    def apply(after: sqlite3.Connection) -> None:
        after.execute(
            "UPDATE tickets SET status = 'closed', resolution = 'duplicate', duplicate_of = ?"
            " WHERE body LIKE ? AND id != ?",
            (first, f"%{code}", first),
        )
        insert(after, "labels", ticket_id=first, name="recurring")

    return Goal(
        f"The error code {code} was reported several times in the project {project}. The ticket that was opened first "
        "stays open and gets the label recurring. Close all others with this error code as duplicates of it.",
        apply,
        (code, first, title, later),
    )


async def _do_duplicates(hands: Hands, plan: Any) -> None:
    code, first, title, later = plan
    for duplicate in later:
        await _find(hands, duplicate)
        await hands.click("Close")
        await hands.choose("Resolution", "duplicate")
        await hands.fill("Duplicate of", str(first))
        await hands.click("Continue")
        await hands.click("Close ticket")
    await hands.click("Tickets")
    await hands.fill("Text", code)
    await hands.choose("Status", "open")
    await hands.click("Search")
    await hands.click(title)
    await hands.fill("New label", "recurring")
    await hands.click("Add label")


def _project(db: sqlite3.Connection, random: Random) -> str:
    names: list[str] = [row["name"] for row in db.execute("SELECT name FROM projects")]
    return random.choice(names)


async def _find(hands: Hands, title: str) -> None:
    """Open a ticket by its title."""
    await hands.click("Tickets")
    await hands.fill("Text", title)
    await hands.click("Search")
    await hands.click(title)


KINDS = (
    Kind("triage", _triage, _do_triage),
    Kind("duplicates", _duplicates, _do_duplicates),
)
