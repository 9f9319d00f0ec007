"""Kinds of tasks in the wiki."""

from __future__ import annotations

import sqlite3
from random import Random
from typing import TYPE_CHECKING, Any

from hud_benchmarks.autonomy.applications.wiki.seed import SPACES, SPOILED, SYSTEMS
from hud_benchmarks.autonomy.web.application import Goal, Kind
from hud_benchmarks.autonomy.web.rows import insert, update

if TYPE_CHECKING:
    from hud_benchmarks.autonomy.web.browser_actions import BrowserActions

PAGES = "SELECT p.*, s.name AS space FROM pages p JOIN spaces s ON s.id = p.space_id"


# -- rename ---------------------------------------------------------------------------------------


def _rename(db: sqlite3.Connection, random: Random) -> Goal:
    space = random.choice(SPACES[:3])
    rows = db.execute(f"{PAGES} WHERE s.name = ? ORDER BY p.title", (space,)).fetchall()
    system = next(name for name in SYSTEMS if any(name in row["body"] for row in rows))
    new = f"{random.choice(['Lark', 'Pike', 'Sedge'])} {random.randrange(2, 9)}"
    bodies = {
        row["title"]: row["body"].replace(system, new) for row in rows if system in row["body"]
    }

    def apply(after: sqlite3.Connection) -> None:
        for title, body in bodies.items():
            after.execute("UPDATE pages SET body = ? WHERE title = ?", (body, title))

    return Goal(
        f"The system {system} is now called {new}. Replace the name wherever it stands in the text of a page of the "
        f"space {space}. The rest of the texts, and the other spaces, stay as they are.",
        apply,
        bodies,
    )


async def _do_rename(hands: BrowserActions, plan: Any) -> None:
    for title, body in plan.items():
        await _open(hands, title)
        await hands.click("Edit")
        await hands.fill("Text", body)
        await hands.click("Save page")


# -- archive --------------------------------------------------------------------------------------


def _archive(db: sqlite3.Connection, random: Random) -> Goal:
    space = random.choice(SPACES[:3])
    titles = [
        row["title"]
        for row in db.execute(
            f"{PAGES} JOIN tags t ON t.page_id = p.id WHERE s.name = ? AND t.name = 'outdated'",
            (space,),
        )
    ]
    (archive,) = db.execute("SELECT id FROM spaces WHERE name = 'Archive'").fetchone()

    def apply(after: sqlite3.Connection) -> None:
        for title in titles:
            (page,) = after.execute("SELECT id FROM pages WHERE title = ?", (title,)).fetchone()
            update(after, "pages", page, title=f"{title} (old)", space_id=archive)
            after.execute("DELETE FROM tags WHERE page_id = ? AND name = 'outdated'", (page,))

    return Goal(
        f"Archive the pages of the space {space} that have the tag outdated: move each to the space Archive, add "
        "' (old)' to the end of its title, and remove the tag outdated. Their other tags stay.",
        apply,
        titles,
    )


async def _do_archive(hands: BrowserActions, plan: Any) -> None:
    for title in plan:
        await _open(hands, title)
        await hands.click("Remove", within="outdated")
        await hands.click("Edit")
        await hands.fill("Title", f"{title} (old)")
        await hands.choose("Space", "Archive")
        await hands.click("Save page")


# -- restore --------------------------------------------------------------------------------------


def _restore(db: sqlite3.Connection, random: Random) -> Goal:
    space = random.choice(SPACES[:3])
    spoiled = {
        row["title"]: row["good"]
        for row in db.execute(
            "SELECT p.title, min(r.id) AS good FROM pages p JOIN spaces s ON s.id = p.space_id"
            " JOIN revisions r ON r.page_id = p.id WHERE s.name = ? AND p.body = ? GROUP BY p.id",
            (space, SPOILED),
        )
    }

    def apply(after: sqlite3.Connection) -> None:
        for title, revision in spoiled.items():
            (page,) = after.execute("SELECT id FROM pages WHERE title = ?", (title,)).fetchone()
            body = "(SELECT body FROM revisions WHERE id = ?)"
            after.execute(f"UPDATE pages SET body = {body} WHERE id = ?", (revision, page))
            insert(after, "tags", page_id=page, name="checked")

    return Goal(
        f"Somebody has overwritten pages of the space {space} with '{SPOILED}'. Restore the revision before that on "
        "each of them, and give each the tag checked.",
        apply,
        spoiled,
    )


async def _do_restore(hands: BrowserActions, plan: Any) -> None:
    for title, revision in plan.items():
        await _open(hands, title)
        await hands.click("History")
        await hands.click(f"Revision {revision}")
        await hands.click("Restore")
        await hands.fill("New tag", "checked")
        await hands.click("Add tag")


# -- merge ----------------------------------------------------------------------------------------


def _merge(db: sqlite3.Connection, random: Random) -> Goal:
    space = random.choice(SPACES[:3])
    rows = db.execute(
        f"{PAGES} WHERE s.name = ? AND p.body != ? ORDER BY p.title", (space, SPOILED)
    ).fetchall()
    lasting, *merged = random.sample(rows, 3)
    last_lines = [row["body"].splitlines()[-1] for row in merged]
    body = "\n".join([lasting["body"], *last_lines])
    titles = [row["title"] for row in merged]

    def apply(after: sqlite3.Connection) -> None:
        update(after, "pages", lasting["id"], body=body)
        insert(after, "tags", page_id=lasting["id"], name="merged")
        for row in merged:
            after.execute("DELETE FROM tags WHERE page_id = ?", (row["id"],))
            after.execute("DELETE FROM pages WHERE id = ?", (row["id"],))

    return Goal(
        f"In the space {space}, merge the pages {titles[0]} and {titles[1]} into the page {lasting['title']}: append the "
        f"last line of {titles[0]}, then the last line of {titles[1]}, each as a line of its own at the end of "
        f"{lasting['title']}. Give {lasting['title']} the tag merged, and delete the two other pages.",
        apply,
        (lasting["title"], body, titles),
    )


async def _do_merge(hands: BrowserActions, plan: Any) -> None:
    lasting, body, titles = plan
    await _open(hands, lasting)
    await hands.click("Edit")
    await hands.fill("Text", body)
    await hands.click("Save page")
    await hands.fill("New tag", "merged")
    await hands.click("Add tag")
    for title in titles:
        await _open(hands, title)
        await hands.click("Delete")
        await hands.fill("Title", title)
        await hands.click("Delete page")


# -- minutes --------------------------------------------------------------------------------------


def _minutes(db: sqlite3.Connection, random: Random) -> Goal:
    people = [row["name"] for row in db.execute("SELECT name FROM users")]
    space = random.choice(SPACES[:3])
    chair, writer = random.sample(people, 2)
    days = sorted(random.sample(range(1, 29), 3))
    written = {
        f"{space} meeting, {day} February": f"Chair: {chair}\nMinutes: {writer}\nPeople present: {random.randrange(3, 12)}"
        for day in days
    }

    def apply(after: sqlite3.Connection) -> None:
        (place,) = after.execute("SELECT id FROM spaces WHERE name = ?", (space,)).fetchone()
        for title, body in written.items():
            page = insert(after, "pages", space_id=place, title=title, body=body)
            insert(after, "tags", page_id=page, name="minutes")

    listed = "\n\n".join(f"{title}\n{body}" for title, body in written.items())
    return Goal(
        f"Create three pages in the space {space}, each with the tag minutes. Here are their titles, each followed by "
        f"its text of three lines:\n\n{listed}",
        apply,
        (space, written),
    )


async def _do_minutes(hands: BrowserActions, plan: Any) -> None:
    space, written = plan
    for title, body in written.items():
        await hands.click("New page")
        await hands.fill("Title", title)
        await hands.choose("Space", space)
        await hands.fill("Text", body)
        await hands.click("Save page")
        await hands.fill("New tag", "minutes")
        await hands.click("Add tag")


async def _open(hands: BrowserActions, title: str) -> None:
    """Open a page by its title."""
    await hands.click("All pages")
    await hands.fill("Text", title)
    await hands.click("Search")
    await hands.click(title)


KINDS = (
    Kind("rename", _rename, _do_rename),
    Kind("archive", _archive, _do_archive),
    Kind("restore", _restore, _do_restore),
    Kind("merge", _merge, _do_merge),
    Kind("minutes", _minutes, _do_minutes),
)
