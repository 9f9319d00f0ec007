"""Kinds of tasks in the tracker."""

from __future__ import annotations

import sqlite3
from random import Random
from typing import TYPE_CHECKING, Any

from hud_benchmarks.autonomy.web.application import TODAY, Goal, Kind
from hud_benchmarks.autonomy.web.people import agent_id
from hud_benchmarks.autonomy.web.rows import insert, update

if TYPE_CHECKING:
    from hud_benchmarks.autonomy.web.browser_actions import BrowserActions

TICKETS = """
    SELECT t.*, c.name AS component, p.name AS project, o.name AS owner, u.name AS assignee
    FROM tickets t JOIN components c ON c.id = t.component_id JOIN projects p ON p.id = c.project_id
    JOIN users o ON o.id = c.owner_id LEFT JOIN users u ON u.id = t.assignee_id
"""
NOTES = "List what changed since 2.3."


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


async def _do_triage(hands: BrowserActions, plan: Any) -> None:
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


async def _do_duplicates(hands: BrowserActions, plan: Any) -> None:
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


# -- release --------------------------------------------------------------------------------------


def _release(db: sqlite3.Connection, random: Random) -> Goal:
    project = _project(db, random)
    tickets = db.execute(
        f"{TICKETS} WHERE p.name = ? AND t.milestone = '2.4' AND t.status != 'closed' AND t.priority != 'high'"
        " ORDER BY t.id DESC",
        (project,),
    ).fetchall()
    part = random.choice(sorted({row["component"] for row in tickets}))
    moved = [row["title"] for row in tickets if row["component"] == part]
    urgent = [
        row["title"]
        for row in db.execute(
            f"{TICKETS} WHERE p.name = ? AND c.name = ? AND t.milestone = '2.4' AND t.status != 'closed'"
            " AND t.priority = 'high'",
            (project, part),
        )
    ]
    title = f"Release notes of {part} for 2.4"
    component, owner = db.execute(
        "SELECT c.id, c.owner_id FROM components c JOIN projects p ON p.id = c.project_id WHERE p.name = ? AND c.name = ?",
        (project, part),
    ).fetchone()
    (name,) = db.execute("SELECT name FROM users WHERE id = ?", (owner,)).fetchone()

    def apply(after: sqlite3.Connection) -> None:
        for ticket in moved:
            after.execute("UPDATE tickets SET milestone = '2.5' WHERE title = ?", (ticket,))
        for ticket in urgent:
            after.execute("UPDATE tickets SET priority = 'urgent' WHERE title = ?", (ticket,))
        notes = insert(
            after, "tickets", component_id=component, title=title, body=NOTES, status="open", priority="high",
            milestone="2.4", assignee_id=owner, reporter_id=agent_id(after), opened=TODAY.isoformat(),
        )  # fmt: skip
        insert(after, "labels", ticket_id=notes, name="docs")

    return Goal(
        f"Prepare the release 2.4 of the component {part} of the project {project}. Tickets of this component that are "
        "not closed and have the milestone 2.4 move to the milestone 2.5, unless their priority is high: those keep the "
        f"milestone and become urgent. Then create a ticket in this component: title '{title}', description '{NOTES}', "
        f"priority high, milestone 2.4, assigned to {name}, with the label docs.",
        apply,
        (moved, urgent, title, f"{project} / {part}", name),
    )


async def _do_release(hands: BrowserActions, plan: Any) -> None:
    moved, urgent, title, component, owner = plan
    for ticket in moved:
        await _find(hands, ticket)
        await hands.click("Edit")
        await hands.fill("Milestone", "2.5")
        await hands.click("Save ticket")
    for ticket in urgent:
        await _find(hands, ticket)
        await hands.click("Edit")
        await hands.choose("Priority", "urgent")
        await hands.click("Save ticket")
    await hands.click("New ticket")
    await hands.fill("Title", title)
    await hands.choose("Component", component)
    await hands.choose("Priority", "high")
    await hands.choose("Assignee", owner)
    await hands.fill("Milestone", "2.4")
    await hands.fill("Description", NOTES)
    await hands.click("Save ticket")
    await hands.fill("New label", "docs")
    await hands.click("Add label")


# -- handover -------------------------------------------------------------------------------------


def _handover(db: sqlite3.Connection, random: Random) -> Goal:
    counts = db.execute(
        "SELECT u.name, count(*) FROM tickets t JOIN users u ON u.id = t.assignee_id"
        " WHERE t.status = 'in progress' GROUP BY u.id HAVING count(*) BETWEEN 1 AND 4 ORDER BY count(*) DESC"
    ).fetchall()
    leaver = random.choice(counts[:3])["name"]
    heir = random.choice(
        [row["name"] for row in db.execute("SELECT name FROM users") if row["name"] != leaver]
    )
    titles = [
        row["title"]
        for row in db.execute(f"{TICKETS} WHERE u.name = ? AND t.status = 'in progress'", (leaver,))
    ]
    remark = f"Taken over from {leaver}."

    def apply(after: sqlite3.Connection) -> None:
        (user,) = after.execute("SELECT id FROM users WHERE name = ?", (heir,)).fetchone()
        for title in titles:
            (ticket,) = after.execute("SELECT id FROM tickets WHERE title = ?", (title,)).fetchone()
            update(after, "tickets", ticket, status="open", assignee_id=user)
            insert(after, "comments", ticket_id=ticket, author_id=agent_id(after), body=remark)

    return Goal(
        f"{leaver} leaves. Hand every ticket that is in progress and assigned to {leaver} over to {heir}: set it back to "
        f"open, assign it to {heir}, and add the comment '{remark}' to each. Other tickets of {leaver} stay as they are.",
        apply,
        (heir, remark, titles),
    )


async def _do_handover(hands: BrowserActions, plan: Any) -> None:
    heir, remark, titles = plan
    for title in titles:
        await _find(hands, title)
        await hands.click("Edit")
        await hands.choose("Status", "open")
        await hands.choose("Assignee", heir)
        await hands.click("Save ticket")
        await hands.fill("Comment", remark)
        await hands.click("Add comment")


# -- incident -------------------------------------------------------------------------------------


def _incident(db: sqlite3.Connection, random: Random) -> Goal:
    project = _project(db, random)
    parts = db.execute(
        "SELECT c.id, c.name, c.owner_id, u.name AS owner FROM components c JOIN projects p ON p.id = c.project_id"
        " JOIN users u ON u.id = c.owner_id WHERE p.name = ? ORDER BY c.id",
        (project,),
    ).fetchall()
    main, *others = random.sample(parts, 3)
    hour = random.randrange(1, 12)
    title = f"Outage of {main['name']} at {hour:02}:{random.randrange(60):02}"
    body = f"Customers reported it {random.randrange(3, 40)} times."

    def apply(after: sqlite3.Connection) -> None:
        values = {"status": "open", "reporter_id": agent_id(after), "opened": TODAY.isoformat()}
        outage = insert(
            after, "tickets", component_id=main["id"], title=title, body=body, priority="urgent",
            assignee_id=main["owner_id"], **values,
        )  # fmt: skip
        insert(after, "labels", ticket_id=outage, name="customer")
        for component in others:
            insert(
                after, "tickets", component_id=component["id"], title=f"Check {component['name']} after the outage", body="",
                priority="normal", assignee_id=component["owner_id"], parent_id=outage, **values,
            )  # fmt: skip

    return Goal(
        f"Record an incident in the project {project}. Create a ticket in the component {main['name']}: title '{title}', "
        f"description '{body}', priority urgent, no milestone, assigned to the owner of the component, with the label "
        f"customer. Then create one ticket in the component {others[0]['name']} and one in {others[1]['name']}, titled "
        "'Check COMPONENT after the outage' with the component's name, without a description, priority normal, no "
        "milestone, assigned to the owner of that component, each as a part of the first ticket.",
        apply,
        (project, title, body, *(tuple(affected) for affected in (main, *others))),
    )


async def _do_incident(hands: BrowserActions, plan: Any) -> None:
    project, title, body, main, *others = plan
    await hands.click("New ticket")
    await hands.fill("Title", title)
    await hands.choose("Component", f"{project} / {main[1]}")
    await hands.choose("Priority", "urgent")
    await hands.choose("Assignee", main[3])
    await hands.fill("Description", body)
    await hands.click("Save ticket")
    number = (await hands.screen.url()).rsplit("/", 1)[-1]
    await hands.fill("New label", "customer")
    await hands.click("Add label")
    for _, component, _, owner in others:
        await hands.click("New ticket")
        await hands.fill("Title", f"Check {component} after the outage")
        await hands.choose("Component", f"{project} / {component}")
        await hands.choose("Assignee", owner)
        await hands.fill("Part of", number)
        await hands.click("Save ticket")


def _project(db: sqlite3.Connection, random: Random) -> str:
    names: list[str] = [row["name"] for row in db.execute("SELECT name FROM projects")]
    return random.choice(names)


async def _find(hands: BrowserActions, title: str) -> None:
    """Open a ticket by its title."""
    await hands.click("Tickets")
    await hands.fill("Text", title)
    await hands.click("Search")
    await hands.click(title)


KINDS = (
    Kind("triage", _triage, _do_triage),
    Kind("duplicates", _duplicates, _do_duplicates),
    Kind("release", _release, _do_release),
    Kind("handover", _handover, _do_handover),
    Kind("incident", _incident, _do_incident),
)
