"""Kinds of tasks with the account and its policies."""

from __future__ import annotations

import sqlite3
from random import Random
from typing import TYPE_CHECKING, Any

from hud_benchmarks.autonomy.applications.settings.kinds.members import active
from hud_benchmarks.autonomy.applications.settings.seed import (
    AUDIENCES,
    CHANNELS,
    EVENTS,
    SETTINGS,
    email,
)
from hud_benchmarks.autonomy.applications.settings.seed import (
    KINDS as POLICIES,
)
from hud_benchmarks.autonomy.web.application import Goal, Kind

if TYPE_CHECKING:
    from hud_benchmarks.autonomy.web.browser_actions import BrowserActions


# -- account ---------------------------------------------------------------------------------------


def _account(db: sqlite3.Connection, random: Random) -> Goal:
    now = {row["name"]: row["value"] for row in db.execute("SELECT name, value FROM settings")}
    wanted: dict[str, dict[str, str]] = {}
    for section, count in (("general", 3), ("security", 3)):
        names = [name for name, values in SETTINGS[section].items() if len(values) > 1]
        wanted[section] = {
            name: random.choice([value for value in SETTINGS[section][name] if value != now[name]])
            for name in sorted(random.sample(names, count), key=names.index)
        }
    seats = len(active(db, everybody=True)) + random.randint(7, 20)
    wanted["plan"] = {
        "Plan": random.choice(
            [plan for plan in ("Starter", "Team", "Business") if plan != now["Plan"]]
        ),
        "Seats": str(seats),
        "Billing cycle": "monthly" if now["Billing cycle"] == "yearly" else "yearly",
    }
    wanted["invoices"] = {
        "Invoices go to": f"ledger@{email('a b').partition('@')[2]}",
        "Purchase order": f"PO-{random.randint(3000, 9999)}",
        "Cost centre": str(random.randint(300, 999)),
    }

    def apply(after: sqlite3.Connection) -> None:
        for settings in wanted.values():
            for name, value in settings.items():
                after.execute("UPDATE settings SET value = ? WHERE name = ?", (value, name))

    spare = seats - len(active(db, everybody=True))
    listed = {
        section: ", ".join(
            f"{name}: {value}" for name, value in settings.items() if name != "Seats"
        )
        for section, settings in wanted.items()
    }
    return Goal(
        f"Bring the account up to date. General settings: {listed['general']}. Sign-in rules: {listed['security']}. "
        f"{listed['plan']}, with as many seats as there are active members and {spare} more. Invoices: {listed['invoices']}.",
        apply,
        (wanted, now["Workspace name"]),
    )


async def _do_account(hands: BrowserActions, plan: Any) -> None:
    wanted, name = plan
    await hands.click("Edit general settings")
    for label, value in wanted["general"].items():
        await hands.choose(label, value)
    await hands.click("Save settings")
    await hands.click("Change sign-in rules")
    for label, value in wanted["security"].items():
        await hands.choose(label, value)
    await hands.click("Continue")
    await hands.click("I have read this")
    await hands.click("Apply rules")
    await hands.click("Billing")
    await hands.click("Change plan")
    await hands.choose("Plan", wanted["plan"]["Plan"])
    await hands.click("Continue")
    await hands.fill("Seats", wanted["plan"]["Seats"])
    await hands.choose("Billing cycle", wanted["plan"]["Billing cycle"])
    await hands.click("Continue")
    await hands.fill("Name of the workspace", name)
    await hands.click("Change plan")
    await hands.click("Edit invoice details")
    for label, value in wanted["invoices"].items():
        await hands.fill(label, value)
    await hands.click("Save invoice details")


# -- notifications ---------------------------------------------------------------------------------


def _notifications(db: sqlite3.Connection, random: Random) -> Goal:
    channel = random.choice(CHANNELS)
    event, *others = random.sample(EVENTS, 3)
    called, informed = sorted(random.sample(AUDIENCES, 2)), random.choice(AUDIENCES)
    other = random.choice([name for name in CHANNELS if name != channel])
    changed: dict[str, list[tuple[str, str, str]]] = {}
    for row in db.execute("SELECT * FROM notifications ORDER BY id"):
        pace = row["pace"]
        if row["channel"] == channel:
            pace = "at once" if row["event"] == event and row["audience"] in called else "off"
        elif row["channel"] == other and row["audience"] == informed and row["event"] in others:
            pace = "daily"
        if pace != row["pace"]:
            changed.setdefault(row["audience"], []).append((row["event"], row["channel"], pace))

    def apply(after: sqlite3.Connection) -> None:
        for audience, cells in changed.items():
            for event, channel, pace in cells:
                after.execute(
                    "UPDATE notifications SET pace = ? WHERE audience = ? AND event = ? AND channel = ?",
                    (pace, audience, event, channel),
                )

    return Goal(
        f"Set the notifications by these rules, for all four audiences. {channel} is only for the event {event}, which goes "
        f"to {called[0]} and {called[1]} at once; everything else by {channel} is off. By {other}, the events {others[0]} and "
        f"{others[1]} go to {informed} daily. All others stay as they are.",
        apply,
        changed,
    )


async def _do_notifications(hands: BrowserActions, plan: Any) -> None:
    for audience, cells in plan.items():
        await hands.click("Notifications")
        await hands.click(audience)
        for event, channel, pace in cells:
            await hands.choose(channel, pace, within=event)
        await hands.click("Save notifications")


# -- retention -------------------------------------------------------------------------------------


def _retention(db: sqlite3.Connection, random: Random) -> Goal:
    kinds = random.sample(POLICIES, 4)
    long, short = random.choice([1825, 2555, 3650]), random.choice([7, 14, 21])
    (hold,) = random.sample([row["name"] for row in db.execute("SELECT name FROM teams")], 1)
    policies = {
        kind: (long, "archive", hold) if place < 2 else (short, "delete", "")
        for place, kind in enumerate(kinds)
    }

    def apply(after: sqlite3.Connection) -> None:
        for kind, (days, action, team) in policies.items():
            after.execute(
                "UPDATE retention SET days = ?, action = ?, hold_id = (SELECT id FROM teams WHERE name = ?) WHERE kind = ?",
                (days, action, team, kind),
            )

    return Goal(
        f"Change four retention policies: {kinds[0]} and {kinds[1]} are archived after {long} days, with a legal hold for "
        f"{hold}; {kinds[2]} and {kinds[3]} are deleted after {short} days, with no legal hold. Apply each.",
        apply,
        policies,
    )


async def _do_retention(hands: BrowserActions, plan: Any) -> None:
    for kind, (days, action, hold) in plan.items():
        await hands.click("Retention")
        await hands.click("Edit", within=kind)
        await hands.fill("Days", str(days))
        await hands.choose("Then", action)
        await hands.choose("Legal hold for", hold or "none")
        await hands.click("Continue")
        await hands.click("I understand what happens")
        await hands.click("Apply policy")


KINDS = (
    Kind("account", _account, _do_account),
    Kind("notifications", _notifications, _do_notifications),
    Kind("retention", _retention, _do_retention),
)
