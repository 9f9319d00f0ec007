"""Members, as several kinds of tasks find and invite them."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

from hud_benchmarks.autonomy.applications.settings.seed import email
from hud_benchmarks.autonomy.web.rows import insert

if TYPE_CHECKING:
    from hud_benchmarks.autonomy.web.browser_actions import BrowserActions

NEW_PEOPLE = ("Petra Lang", "Rafael Costa", "Selma Aydin", "Theo Novak", "Uma Patel", "Viktor Hahn")


def active(db: sqlite3.Connection, *, everybody: bool = False) -> list[str]:
    """Return the names of the active members, without the agent's own unless `everybody`."""
    rows = db.execute("SELECT id, name FROM members WHERE status = 'active' ORDER BY id")
    return [row["name"] for row in rows if everybody or row["id"] != 1]


def member(db: sqlite3.Connection, name: str) -> int:
    (member_id,) = db.execute("SELECT id FROM members WHERE name = ?", (name,)).fetchone()
    number: int = member_id
    return number


def invite(db: sqlite3.Connection, name: str, role: int, team: int) -> None:
    insert(
        db, "members", name=name, email=email(name), role_id=role, team_id=team, status="invited", second_factor="none"
    )  # fmt: skip


async def do_invite(hands: BrowserActions, name: str, role: str, team: str) -> None:
    await hands.click("People")
    await hands.click("Invite a member")
    await hands.fill("Name", name)
    await hands.fill("Email", email(name))
    await hands.click("Continue")
    await hands.choose("Role", role)
    await hands.choose("Team", team)
    await hands.click("Continue")
    await hands.click("Send invitation")
