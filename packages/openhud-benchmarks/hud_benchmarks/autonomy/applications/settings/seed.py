"""A workspace of twenty members in five teams, with keys, integrations, notifications and retention policies."""

from __future__ import annotations

import sqlite3
from datetime import timedelta
from random import Random

from hud_benchmarks.autonomy.web.application import TODAY
from hud_benchmarks.autonomy.web.people import PEOPLE, insert_people
from hud_benchmarks.autonomy.web.rows import insert, update

DOMAIN = "northwind.example"
TEAMS = ("Engineering", "Finance", "Support", "Design", "Legal")
ROLES = {
    "Owner": (
        "read projects", "edit projects", "delete projects", "invite members", "manage keys", "manage integrations",
        "see invoices", "export data",
    ),
    "Admin": ("read projects", "edit projects", "delete projects", "invite members", "manage keys", "manage integrations"),
    "Editor": ("read projects", "edit projects"),
    "Viewer": ("read projects",),
}  # fmt: skip
PERMISSIONS = ROLES["Owner"]
SCOPES = ("read", "write", "deploy", "billing", "audit")
NETWORKS = ("any", "office", "data centre", "build servers")
EVENTS = ("incident", "deployment", "sign-in", "comment", "invoice", "export")
CHANNELS = ("Email", "Chat", "Phone")
PACES = ("off", "at once", "daily", "weekly")
AUDIENCES = ("Administrators", "Engineers", "Accountants", "Everybody else")
INTEGRATIONS = ("Pager", "Chatroom", "Sheets", "Mirror", "Status page", "Helpdesk")
CONNECTED = 4
"""Integrations that are connected at first."""
KINDS = ("messages", "attachments", "recordings", "audit log", "backups", "drafts", "exports")
SETTINGS: dict[str, dict[str, tuple[str, ...]]] = {
    "general": {
        "Workspace name": ("Northwind",),
        "Language": ("English", "German", "French"),
        "Time zone": ("Europe/London", "Europe/Berlin", "America/New York"),
        "First day of the week": ("Monday", "Sunday"),
        "Date format": ("2026-03-02", "02.03.2026", "03/02/2026"),
    },
    "security": {
        "Second factor required of": ("nobody", "administrators", "everybody"),
        "Shortest password": ("8", "10", "12"),
        "Session ends after": ("1 hour", "8 hours", "30 days"),
    },
    "billing": {
        "Plan": ("Starter", "Team", "Business"),
        "Seats": ("20", "25"),
        "Billing cycle": ("monthly", "yearly"),
        "Invoices go to": (f"office@{DOMAIN}", f"accounts@{DOMAIN}"),
        "Purchase order": ("PO-1180", "PO-2214"),
        "Cost centre": ("100", "200"),
    },
}
"""Settings by section, with the values that they begin with."""
_MORE = (
    "Hugo Marsh", "Irene Castel", "Jonas Weber", "Keiko Mori", "Luca Bianchi", "Mina Farouk", "Nils Berg", "Olga Sand",
)  # fmt: skip
_USES = ("backup", "importer", "mailer", "monitor", "publisher", "reporter", "search", "sync")
KEYS = 16
NEARLY_EXPIRED = 2
"""Active keys that expire this month."""


def seed(db: sqlite3.Connection, random: Random) -> None:
    """Fill an empty database."""
    insert_people(db, random, 1)
    for section, settings in SETTINGS.items():
        for name, values in settings.items():
            insert(db, "settings", section=section, name=name, value=random.choice(values))
    owners = _insert_members(db, random)
    _insert_keys(db, random, owners)
    for place, name in enumerate(random.sample(INTEGRATIONS, len(INTEGRATIONS))):
        connected = place < CONNECTED
        integration = insert(
            db, "integrations", name=name, status="connected" if connected else "off",
            owner_id=random.choice(owners) if connected else None, channel=_channel(random) if connected else "",
        )  # fmt: skip
        for event in random.sample(EVENTS, 2 if connected else 0):
            insert(db, "subscriptions", integration_id=integration, event=event)
    for audience in AUDIENCES:
        for event in EVENTS:
            for channel in CHANNELS:
                pace = random.choice(PACES)
                insert(db, "notifications", audience=audience, event=event, channel=channel, pace=pace)  # fmt: skip
    teams = [row["id"] for row in db.execute("SELECT id FROM teams")]
    for kind in KINDS:
        insert(
            db, "retention", kind=kind, days=random.choice([30, 90, 365, 730]), action=random.choice(["delete", "archive"]),
            hold_id=random.choice([None, None, *teams]), items=random.randrange(200, 90_000),
        )  # fmt: skip


def _insert_members(db: sqlite3.Connection, random: Random) -> list[int]:
    """Insert roles, teams and members; return the ids of the active members but the first."""
    roles = {name: insert(db, "roles", name=name) for name in ROLES}
    for name, permissions in ROLES.items():
        for permission in permissions:
            insert(db, "permissions", role_id=roles[name], name=permission)
    teams = [insert(db, "teams", name=name) for name in TEAMS]
    for place, name in enumerate([*(person.name for person in PEOPLE), *_MORE]):
        insert(
            db, "members", name=name, email=email(name),
            role_id=roles["Owner" if place == 0 else random.choice(["Admin", "Editor", "Editor", "Viewer"])],
            team_id=teams[place % len(teams)],
            status=random.choice(["active"] * 6 + ["suspended"]) if place else "active",
            second_factor=random.choice(["none", "app", "app", "key"]) if place else "app",
        )  # fmt: skip
    rows = db.execute("SELECT id FROM members WHERE status = 'active' AND id != 1").fetchall()
    active = [row["id"] for row in rows]
    for team, lead in zip(teams, random.sample(active, len(teams)), strict=True):
        update(db, "teams", team, lead_id=lead)
    return active


def _insert_keys(db: sqlite3.Connection, random: Random, owners: list[int]) -> None:
    soon = set(random.sample(range(KEYS), NEARLY_EXPIRED))
    for number in range(KEYS):
        days = random.randint(1, 28) if number in soon else random.randint(40, 400)
        active = number in soon or random.random() < 0.8
        key = insert(
            db, "keys", name=f"{_USES[number % len(_USES)]}-{number + 1}", owner_id=random.choice(owners),
            network=random.choice(NETWORKS), expires=(TODAY + timedelta(days=days)).isoformat(),
            status="active" if active else "revoked",
        )  # fmt: skip
        for scope in random.sample(SCOPES, 1 if number in soon else 2):
            insert(db, "scopes", key_id=key, name=scope)


def email(name: str) -> str:
    """Return the address of a person."""
    return f"{name.lower().replace(' ', '.')}@{DOMAIN}"


def _channel(random: Random) -> str:
    """Draw a channel."""
    return f"#{random.choice(['alerts', 'general', 'office', 'releases'])}"
