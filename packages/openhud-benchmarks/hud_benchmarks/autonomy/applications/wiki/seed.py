"""Pages of four spaces: some outdated, some in two versions, some spoiled by their last revision."""

from __future__ import annotations

import sqlite3
from random import Random

from hud_benchmarks.autonomy.web.people import insert_people
from hud_benchmarks.autonomy.web.rows import insert

SPACES = ("Engineering", "Office", "Sales", "Archive")
SYSTEMS = ("Quill", "Osprey", "Marlin", "Tundra")
SPOILED = "asdf asdf asdf"
_TOPICS = {
    "Engineering": ("Deployment", "Backups", "On-call", "Code review", "Incidents", "Databases", "Access", "Logging"),
    "Office": ("Travel", "Expenses", "Parking", "Visitors", "Printers", "Holidays", "Desks", "Lunch"),
    "Sales": ("Discounts", "Contracts", "Trials", "Renewals", "Partners", "Quotes", "Invoices", "Leads"),
    "Archive": ("Moving house", "Old offices"),
}  # fmt: skip
_LINES = (
    "Ask {person} before you begin.",
    "The form is in {system}; it takes a day.",
    "Requests for more than {number} need a second signature.",
    "{system} sends a reminder after {number} days.",
    "{person} keeps the list.",
    "Nothing is done on Fridays after {number} o'clock.",
)


def seed(db: sqlite3.Connection, random: Random) -> None:
    """Fill an empty database."""
    users = insert_people(db, random, 6)
    names = [row["name"] for row in db.execute("SELECT name FROM users")]
    for space in SPACES:
        place = insert(db, "spaces", name=space)
        topics = list(_TOPICS[space])
        random.shuffle(topics)
        system = random.choice(SYSTEMS)
        outdated, spoiled = set(topics[:3]), set(topics[3:6])
        for topic in topics:
            lines = [
                line.format(
                    person=random.choice(names), system=system, number=random.randrange(2, 30)
                )
                for line in random.sample(_LINES, 3)
            ]
            body = "\n".join([f"{topic}, as we do it.", *lines])
            shown = SPOILED if topic in spoiled and space != "Archive" else body
            page = insert(db, "pages", space_id=place, title=topic, body=shown)
            for version in dict.fromkeys((body, shown)):
                author = random.choice(users)
                insert(db, "revisions", page_id=page, author_id=author, body=version)
            if topic in outdated and space != "Archive":
                insert(db, "tags", page_id=page, name="outdated")
            if random.random() < 0.4:
                insert(db, "tags", page_id=page, name=random.choice(["howto", "policy"]))
