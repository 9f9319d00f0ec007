"""Kinds of tasks with keys and integrations."""

from __future__ import annotations

import sqlite3
from random import Random
from typing import TYPE_CHECKING, Any

from hud_benchmarks.autonomy.applications.settings.kinds.members import active, member
from hud_benchmarks.autonomy.applications.settings.seed import EVENTS
from hud_benchmarks.autonomy.web.application import Goal, Kind
from hud_benchmarks.autonomy.web.rows import insert, update

if TYPE_CHECKING:
    from hud_benchmarks.autonomy.web.browser_actions import BrowserActions


# -- rotation --------------------------------------------------------------------------------------


def _rotation(db: sqlite3.Connection, random: Random) -> Goal:
    before, expires = "2026-04-01", f"2027-{random.randint(1, 12):02}-{random.randint(1, 28):02}"
    rows = db.execute(
        "SELECT k.*, m.name AS owner FROM keys k JOIN members m ON m.id = k.owner_id"
        " WHERE k.status = 'active' AND k.expires < ? ORDER BY k.id",
        (before,),
    ).fetchall()
    scopes = {
        row["id"]: [
            scope["name"]
            for scope in db.execute("SELECT name FROM scopes WHERE key_id = ?", (row["id"],))
        ]
        for row in rows
    }

    def apply(after: sqlite3.Connection) -> None:
        for row in rows:
            update(after, "keys", row["id"], status="revoked")
            new = insert(
                after, "keys", name=row["name"], owner_id=row["owner_id"], network=row["network"], expires=expires,
                status="active",
            )  # fmt: skip
            for scope in scopes[row["id"]]:
                insert(after, "scopes", key_id=new, name=scope)

    return Goal(
        f"Rotate the API keys that are active and expire before {before}. For each, create a new key with the same name, "
        f"owner, scopes and network that expires on {expires}, and then revoke the old one.",
        apply,
        (expires, [(dict(row), scopes[row["id"]]) for row in rows]),
    )


async def _do_rotation(hands: BrowserActions, plan: Any) -> None:
    expires, keys = plan
    for key, scopes in keys:
        await hands.click("API keys")
        await hands.click("New key")
        await hands.fill("Name", key["name"])
        await hands.choose("Owner", key["owner"])
        await hands.click("Continue")
        for scope in scopes:
            await hands.click(scope)
        await hands.click("Continue")
        await hands.choose("Network", key["network"])
        await hands.fill("Expires on", expires)
        await hands.click("Continue")
        await hands.click("Create key")
        await hands.click("API keys")
        await hands.fill("Text", key["name"])
        await hands.click("Search")
        await hands.click(key["name"], within=key["expires"])
        await revoke(hands, key["name"])


# -- integrations ----------------------------------------------------------------------------------


def _integrations(db: sqlite3.Connection, random: Random) -> Goal:
    names = {
        status: [
            row["name"]
            for row in db.execute("SELECT name FROM integrations WHERE status = ?", (status,))
        ]
        for status in ("off", "connected")
    }
    gone = random.choice(names["connected"])
    owners, channel = random.sample(active(db), 2), f"#{random.choice(['desk', 'launch', 'watch'])}"
    events = {name: sorted(random.sample(EVENTS, 2), key=EVENTS.index) for name in names["off"]}
    made = dict(zip(names["off"], owners, strict=True))

    def apply(after: sqlite3.Connection) -> None:
        for name, owner in made.items():
            after.execute(
                "UPDATE integrations SET status = 'connected', owner_id = ?, channel = ? WHERE name = ?",
                (member(after, owner), channel, name),
            )
            (number,) = after.execute(
                "SELECT id FROM integrations WHERE name = ?", (name,)
            ).fetchone()
            for event in events[name]:
                insert(after, "subscriptions", integration_id=number, event=event)
        (number,) = after.execute("SELECT id FROM integrations WHERE name = ?", (gone,)).fetchone()
        update(after, "integrations", number, status="off", owner_id=None, channel="")
        after.execute("DELETE FROM subscriptions WHERE integration_id = ?", (number,))

    listed = "; ".join(
        f"{name} with the owner {made[name]} and the events {' and '.join(events[name])}"
        for name in made
    )
    return Goal(
        f"Connect these integrations, both to the channel {channel}: {listed}. Disconnect {gone}.",
        apply,
        (made, channel, events, gone),
    )


async def _do_integrations(hands: BrowserActions, plan: Any) -> None:
    made, channel, events, gone = plan
    for name, owner in made.items():
        await hands.click("Integrations")
        await hands.click(name)
        await hands.click("Connect")
        await hands.choose("Owner", owner)
        await hands.fill("Channel", channel)
        await hands.click("Continue")
        for event in events[name]:
            await hands.click(event)
        await hands.click("Continue")
        await hands.click("I agree to the terms")
        await hands.click("Connect")
    await hands.click("Integrations")
    await hands.click(gone)
    await hands.click("Disconnect")
    await hands.click("I know that its settings are lost")
    await hands.click("Disconnect")


async def revoke(hands: BrowserActions, name: str) -> None:
    """Revoke the key that the page shows."""
    await hands.click("Revoke")
    await hands.fill("Name of the key", name)
    await hands.click("Revoke key")


KINDS = (
    Kind("rotation", _rotation, _do_rotation),
    Kind("integrations", _integrations, _do_integrations),
)
