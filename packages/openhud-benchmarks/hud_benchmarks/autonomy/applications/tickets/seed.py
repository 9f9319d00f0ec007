"""Tickets of three projects: some unassigned, some reported several times, spread over two milestones."""

from __future__ import annotations

import sqlite3
from datetime import timedelta
from random import Random

from hud_benchmarks.autonomy.web.application import TODAY
from hud_benchmarks.autonomy.web.people import insert_people
from hud_benchmarks.autonomy.web.rows import insert

PROJECTS = {
    "Atlas": ("Maps and routes", ["Search", "Tiles", "Routing", "Accounts"]),
    "Beacon": ("Notifications", ["Email", "Push", "Schedules", "Templates"]),
    "Cinder": ("Billing", ["Invoices", "Payments", "Reports", "Import"]),
}
MILESTONES = ("2.4", "2.5")
LABELS = ("blocker", "customer", "regression", "docs")
TICKETS_EACH = 20
UNASSIGNED_EACH = 3
REPORTED_AGAIN = 2
_SUBJECTS = (
    "page", "list", "form", "job", "request", "setting", "link", "button", "table", "export",
)  # fmt: skip
_SYMPTOMS = (
    "shows an old {}", "loses the {} after a reload", "times out on a large {}", "ignores the {} filter",
    "prints the {} twice", "crashes on an empty {}", "rounds the {} wrongly", "needs a clearer {} message",
)  # fmt: skip
_NOUNS = (
    "date", "address", "total", "name", "region", "language", "attachment", "customer", "account", "draft",
)  # fmt: skip
_REMARKS = ("I can see this, too.", "Since the last release.", "Not on my machine.", "A log follows.")  # fmt: skip


def seed(db: sqlite3.Connection, random: Random) -> None:
    """Fill an empty database."""
    users = insert_people(db, random, 9)
    components = _insert_projects(db, random, users)
    places = [place for place in components for _ in range(TICKETS_EACH // 4)]
    random.shuffle(places)
    left = dict.fromkeys(PROJECTS, UNASSIGNED_EACH)
    titles: set[str] = set()
    day = TODAY - timedelta(days=200)
    for project, component in places:
        day += timedelta(days=random.randint(1, 3))
        unassigned = left[project] > 0
        left[project] -= unassigned
        status = "open" if unassigned else random.choice(["open", "open", "in progress", "closed"])
        ticket = insert(
            db,
            "tickets",
            component_id=components[project, component],
            title=_title(component, random, titles),
            body=f"Seen in {component} of {project}.\nError code: E-{random.randrange(10_000, 100_000)}",
            status=status,
            resolution="fixed" if status == "closed" else "",
            priority=random.choice(["low", "normal", "normal", "high"]),
            milestone=random.choice(MILESTONES),
            assignee_id=None if unassigned else random.choice(users),
            reporter_id=random.choice(users),
            opened=day.isoformat(),
        )
        for label in random.sample(LABELS, random.choice([0, 0, 1, 2])):
            insert(db, "labels", ticket_id=ticket, name=label)
        if random.random() < 0.4:
            author = random.choice(users)
            insert(db, "comments", ticket_id=ticket, author_id=author, body=random.choice(_REMARKS))
    for project in PROJECTS:
        _report_again(db, project, random, users, titles)


def _insert_projects(
    db: sqlite3.Connection, random: Random, users: list[int]
) -> dict[tuple[str, str], int]:
    """Return the ids of the components by the names of project and component."""
    components = {}
    for name, (summary, parts) in PROJECTS.items():
        project = insert(db, "projects", name=name, summary=summary)
        for part, owner in zip(parts, random.sample(users[1:], len(parts)), strict=True):
            components[name, part] = insert(
                db, "components", project_id=project, name=part, owner_id=owner
            )
    return components


def _title(component: str, random: Random, titles: set[str]) -> str:
    """Draw a title that no other ticket has."""
    while True:
        symptom = random.choice(_SYMPTOMS).format(random.choice(_NOUNS))
        title = f"{component} {random.choice(_SUBJECTS)} {symptom}"
        if title not in titles:
            titles.add(title)
            return title


def _report_again(
    db: sqlite3.Connection, project: str, random: Random, users: list[int], titles: set[str]
) -> None:
    """Add open tickets with the error code of an older open one of the project."""
    older = db.execute(
        "SELECT t.component_id, t.body, c.name FROM tickets t JOIN components c ON c.id = t.component_id"
        " JOIN projects p ON p.id = c.project_id"
        " WHERE p.name = ? AND t.status = 'open' AND t.assignee_id IS NOT NULL ORDER BY t.id",
        (project,),
    ).fetchone()
    for days in range(REPORTED_AGAIN, 0, -1):
        opened = TODAY - timedelta(days=days)
        insert(
            db,
            "tickets",
            component_id=older["component_id"],
            title=_title(older["name"], random, titles),
            body=older["body"].replace("Seen", "It happens"),
            status="open",
            priority="normal",
            milestone=random.choice(MILESTONES),
            assignee_id=random.choice(users),
            reporter_id=random.choice(users),
            opened=opened.isoformat(),
        )
