"""The pages of the panel, and the lists of choices that several of its sections have."""

from __future__ import annotations

from pathlib import Path

from hud_benchmarks.autonomy.applications.settings.flow import Option
from hud_benchmarks.autonomy.web.pages import Pages, Visit

pages = Pages(
    "Settings",
    Path(__file__).parent,
    navigation={
        "Workspace": "/",
        "People": "/people",
        "API keys": "/keys",
        "Notifications": "/notifications",
        "Integrations": "/integrations",
        "Retention": "/retention",
        "Billing": "/billing",
    },
)


def members(visit: Visit) -> list[Option]:
    """Return the active members, by id."""
    rows = visit.rows("SELECT id, name FROM members WHERE status = 'active' ORDER BY name")
    return [(row["id"], row["name"]) for row in rows]


def teams(visit: Visit) -> list[Option]:
    """Return the teams, by id."""
    return [(row["id"], row["name"]) for row in visit.rows("SELECT * FROM teams ORDER BY name")]


def roles(visit: Visit) -> list[Option]:
    """Return the roles, by id."""
    return [(row["id"], row["name"]) for row in visit.rows("SELECT * FROM roles ORDER BY id")]


def shown(options: list[Option], value: object) -> str:
    """Return the text of the option with a value."""
    return next((option[1] for option in options if str(option[0]) == str(value)), "none")
