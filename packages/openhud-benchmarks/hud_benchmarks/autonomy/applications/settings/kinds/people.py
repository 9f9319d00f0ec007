"""Kinds of tasks with people: one leaves, a team is set up."""

from __future__ import annotations

import sqlite3
from random import Random
from typing import TYPE_CHECKING, Any

from hud_benchmarks.autonomy.applications.settings.kinds.access import revoke
from hud_benchmarks.autonomy.applications.settings.kinds.members import (
    NEW_PEOPLE,
    active,
    do_invite,
    invite,
    member,
)
from hud_benchmarks.autonomy.applications.settings.seed import PERMISSIONS, email
from hud_benchmarks.autonomy.web.application import Goal, Kind
from hud_benchmarks.autonomy.web.rows import insert

if TYPE_CHECKING:
    from hud_benchmarks.autonomy.web.browser_actions import BrowserActions


# -- offboarding -----------------------------------------------------------------------------------


def _offboarding(db: sqlite3.Connection, random: Random) -> Goal:
    leaver = db.execute(
        "SELECT m.id, m.name, m.email, m.role_id, m.team_id, r.name AS role, t.name AS team FROM members m"
        " JOIN roles r ON r.id = m.role_id JOIN teams t ON t.id = m.team_id JOIN keys k ON k.owner_id = m.id"
        " WHERE k.status = 'active' GROUP BY m.id ORDER BY abs(count(*) - 2), m.id LIMIT 1"
    ).fetchone()
    keys = [
        row["name"]
        for row in db.execute(
            "SELECT name FROM keys WHERE owner_id = ? AND status = 'active'", (leaver["id"],)
        )
    ]
    lead, heir = random.sample([name for name in active(db) if name != leaver["name"]], 2)
    new = random.choice(NEW_PEOPLE)

    def apply(after: sqlite3.Connection) -> None:
        gone = leaver["id"]
        after.execute(
            "UPDATE keys SET status = 'revoked', owner_id = NULL WHERE owner_id = ?", (gone,)
        )
        after.execute("UPDATE teams SET lead_id = ? WHERE lead_id = ?", (member(after, lead), gone))
        after.execute(
            "UPDATE integrations SET owner_id = ? WHERE owner_id = ?", (member(after, heir), gone)
        )
        after.execute("DELETE FROM members WHERE id = ?", (gone,))
        invite(after, new, leaver["role_id"], leaver["team_id"])

    return Goal(
        f"{leaver['name']} leaves, and {new} comes in place. Revoke every active API key of {leaver['name']}. Then remove "
        f"{leaver['name']}: teams are led from now on by {lead}, integrations belong to {heir}. Invite {new} "
        f"({email(new)}) with the role and the team that {leaver['name']} had.",
        apply,
        (dict(leaver), keys, lead, heir, new),
    )


async def _do_offboarding(hands: BrowserActions, plan: Any) -> None:
    leaver, keys, lead, heir, new = plan
    for key in keys:
        await hands.click("API keys")
        await hands.fill("Text", leaver["name"])
        await hands.click("Search")
        await hands.click(key)
        await revoke(hands, key)
    await hands.click("People")
    await hands.fill("Text", leaver["name"])
    await hands.click("Search")
    await hands.click(leaver["name"])
    await hands.click("Remove")
    await hands.choose("Teams are led from now on by", lead)
    await hands.choose("Integrations belong from now on to", heir)
    await hands.click("Continue")
    await hands.fill("Email of the member", leaver["email"])
    await hands.click("Remove member")
    await do_invite(hands, new, leaver["role"], leaver["team"])


# -- team ------------------------------------------------------------------------------------------


def _team(db: sqlite3.Connection, random: Random) -> Goal:
    role = random.choice(["Auditor", "Contractor", "Operator", "Planner"])
    team = random.choice(["Field service", "Research", "Security", "Training"])
    permissions = sorted(random.sample(PERMISSIONS, 3), key=PERMISSIONS.index)
    lead = random.choice(active(db))
    people = random.sample(NEW_PEOPLE, 2)

    def apply(after: sqlite3.Connection) -> None:
        made = insert(after, "roles", name=role)
        for permission in permissions:
            insert(after, "permissions", role_id=made, name=permission)
        group = insert(after, "teams", name=team, lead_id=member(after, lead))
        for name in people:
            invite(after, name, made, group)

    return Goal(
        f"Set up a new team. Create the role {role} with the permissions {', '.join(permissions)}, and no others. Create the "
        f"team {team}, led by {lead}. Then invite {people[0]} ({email(people[0])}) and {people[1]} ({email(people[1])}), both "
        "with the new role and in the new team.",
        apply,
        (role, permissions, team, lead, people),
    )


async def _do_team(hands: BrowserActions, plan: Any) -> None:
    role, permissions, team, lead, people = plan
    await hands.click("People")
    await hands.click("Roles")
    await hands.click("New role")
    await hands.fill("Name", role)
    await hands.click("Continue")
    for permission in permissions:
        await hands.click(permission)
    await hands.click("Continue")
    await hands.click("Create role")
    await hands.click("People")
    await hands.click("Teams")
    await hands.click("New team")
    await hands.fill("Name", team)
    await hands.choose("Lead", lead)
    await hands.click("Create team")
    for name in people:
        await do_invite(hands, name, role, team)


KINDS = (
    Kind("offboarding", _offboarding, _do_offboarding),
    Kind("team", _team, _do_team),
)
