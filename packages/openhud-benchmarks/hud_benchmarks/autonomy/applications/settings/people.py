"""Pages of members, teams and roles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.responses import Response

from hud_benchmarks.autonomy.applications.settings.flow import Field, Step, follow, typed
from hud_benchmarks.autonomy.applications.settings.panel import members, pages, roles, shown, teams
from hud_benchmarks.autonomy.applications.settings.seed import DOMAIN, PERMISSIONS
from hud_benchmarks.autonomy.web.pages import Visit

MEMBERS = """
    SELECT m.*, r.name AS role, t.name AS team
    FROM members m JOIN roles r ON r.id = m.role_id JOIN teams t ON t.id = m.team_id
"""


@pages.get("/people")
def people(visit: Visit) -> Response:
    text = f"%{visit.query.get('text', '')}%"
    where, values = "(m.name LIKE ? OR m.email LIKE ?)", [text, text]
    if visit.query.get("status"):
        where, values = f"{where} AND m.status = ?", [*values, visit.query["status"]]
    listing = visit.listing(f"{MEMBERS} WHERE {where} ORDER BY m.name", *values)
    return visit.page("people.html", listing=listing, statuses=["active", "invited", "suspended"])


@pages.get("/people/{id:int}")
def member(visit: Visit) -> Response:
    return visit.page(
        "member.html", member=_member(visit), **_possessions(visit),
        teams=visit.rows("SELECT * FROM teams WHERE lead_id = ?", visit.id),
    )  # fmt: skip


@pages.get("/people/{id:int}/edit")
@pages.post("/people/{id:int}/edit")
def edit_member(visit: Visit) -> Response:
    person, form = _member(visit), visit.form
    fields = [
        Field("Role", "role", roles(visit)),
        Field("Team", "team", teams(visit)),
        Field("Status", "status", ["active", "suspended"]),
    ]
    steps = [Step(f"Edit {person['name']}", fields, button="Save member")]
    values = {"role": person["role_id"], "team": person["team_id"], "status": person["status"]}
    page = follow(visit, steps, cancel=f"/people/{visit.id}", values=values)
    if page is not None:
        return page
    visit.update(
        "members", visit.id, role_id=form["role"], team_id=form["team"], status=form["status"]
    )
    return visit.go(f"/people/{visit.id}", "Saved.")


@pages.get("/people/invite")
@pages.post("/people/invite")
def invite(visit: Visit) -> Response:
    form = visit.form

    def unknown(form: Any) -> str | None:
        if not form["email"].endswith(f"@{DOMAIN}"):
            return f"Email: an address of {DOMAIN}."
        same_member = visit.rows("SELECT 1 FROM members WHERE email = ? OR name = ?", form["email"], form["name"])  # fmt: skip
        return "There is such a member already." if same_member else None

    steps = [
        Step("Invite a member", [Field("Name", "name"), Field("Email", "email")], check=unknown),
        Step("Role and team", [Field("Role", "role", roles(visit)), Field("Team", "team", teams(visit))]),
        Step(
            "Send the invitation?",
            facts=[
                ("Name", form.get("name")), ("Email", form.get("email")),
                ("Role", shown(roles(visit), form.get("role"))), ("Team", shown(teams(visit), form.get("team"))),
            ],
            button="Send invitation",
        ),
    ]  # fmt: skip
    page = follow(visit, steps, cancel="/people")
    if page is not None:
        return page
    invited = visit.insert(
        "members", name=form["name"], email=form["email"], role_id=form["role"], team_id=form["team"],
        status="invited", second_factor="none",
    )  # fmt: skip
    return visit.go(f"/people/{invited}", f"{form['name']} is invited.")


@pages.get("/people/{id:int}/remove")
@pages.post("/people/{id:int}/remove")
def remove(visit: Visit) -> Response:
    """Hand over what the member leads and owns, then confirm by the address."""
    person, form, others = _member(visit), visit.form, members(visit)
    others = [option for option in others if option[0] != visit.id]
    owned = _possessions(visit)
    active = [key["name"] for key in owned["keys"] if key["status"] == "active"]
    led = visit.rows("SELECT name FROM teams WHERE lead_id = ?", visit.id)
    confirmation, check = typed("Email of the member", person["email"])
    steps = [
        Step(
            f"Remove {person['name']}",
            [
                Field("Teams are led from now on by", "lead", others),
                Field("Integrations belong from now on to", "heir", others),
            ],
            facts=[
                ("Teams", ", ".join(row["name"] for row in led) or "none"),
                ("Integrations", ", ".join(row["name"] for row in owned["integrations"]) or "none"),
                ("Active keys", ", ".join(active) or "none"),
            ],
            check=lambda form: "Revoke the active keys of the member first." if active else None,
        ),
        Step(
            f"Remove {person['name']} for good?",
            [confirmation],
            note=f"Type {person['email']} to confirm. This cannot be undone.",
            button="Remove member",
            check=check,
        ),
    ]
    page = follow(visit, steps, cancel=f"/people/{visit.id}")
    if page is not None:
        return page
    visit.execute("UPDATE teams SET lead_id = ? WHERE lead_id = ?", form["lead"], visit.id)
    visit.execute("UPDATE integrations SET owner_id = ? WHERE owner_id = ?", form["heir"], visit.id)
    visit.execute("DELETE FROM members WHERE id = ?", visit.id)
    return visit.go("/people", f"{person['name']} is removed.")


@pages.get("/teams")
def all_teams(visit: Visit) -> Response:
    rows = visit.rows(
        "SELECT t.*, l.name AS lead, count(m.id) AS size FROM teams t LEFT JOIN members l ON l.id = t.lead_id"
        " LEFT JOIN members m ON m.team_id = t.id GROUP BY t.id ORDER BY t.name"
    )
    return visit.page("teams.html", teams=rows)


@pages.get("/teams/new")
@pages.post("/teams/new")
def new_team(visit: Visit) -> Response:
    fields = [Field("Name", "name"), Field("Lead", "lead", members(visit))]
    steps = [Step("New team", fields, button="Create team", check=_unused(visit, "team"))]
    page = follow(visit, steps, cancel="/teams")
    if page is not None:
        return page
    visit.insert("teams", name=visit.form["name"], lead_id=visit.form["lead"])
    return visit.go("/teams", f"The team {visit.form['name']} is created.")


@pages.get("/teams/{id:int}/edit")
@pages.post("/teams/{id:int}/edit")
def edit_team(visit: Visit) -> Response:
    team = visit.row("SELECT * FROM teams WHERE id = ?", visit.id)
    steps = [
        Step(f"Edit {team['name']}", [Field("Lead", "lead", members(visit))], button="Save team")
    ]
    page = follow(visit, steps, cancel="/teams", values={"lead": team["lead_id"]})
    if page is not None:
        return page
    visit.update("teams", visit.id, lead_id=visit.form["lead"])
    return visit.go("/teams", "Saved.")


@pages.get("/roles")
def all_roles(visit: Visit) -> Response:
    rows = visit.rows(
        "SELECT r.name, group_concat(p.name, ', ') AS permissions FROM roles r"
        " LEFT JOIN permissions p ON p.role_id = r.id GROUP BY r.id ORDER BY r.id"
    )
    return visit.page("roles.html", roles=rows)


@pages.get("/roles/new")
@pages.post("/roles/new")
def new_role(visit: Visit) -> Response:
    permissions = visit.several("permissions")
    steps = [
        Step("New role", [Field("Name", "name")], check=_unused(visit, "role")),
        Step("Permissions", [Field("Permissions", "permissions", PERMISSIONS, several=True)]),
        Step(
            "Create the role?",
            facts=[("Name", visit.form.get("name")), ("Permissions", ", ".join(permissions))],
            button="Create role",
        ),
    ]
    page = follow(visit, steps, cancel="/roles")
    if page is not None:
        return page
    role = visit.insert("roles", name=visit.form["name"])
    for permission in permissions:
        visit.execute("INSERT INTO permissions VALUES (?, ?)", role, permission)
    return visit.go("/roles", f"The role {visit.form['name']} is created.")


def _member(visit: Visit) -> Any:
    return visit.row(f"{MEMBERS} WHERE m.id = ?", visit.id)


def _possessions(visit: Visit) -> dict[str, list[Any]]:
    """Return keys and integrations of a member."""
    return {
        table: visit.rows(f"SELECT * FROM {table} WHERE owner_id = ? ORDER BY id", visit.id)
        for table in ("keys", "integrations")
    }


def _unused(visit: Visit, kind: str) -> Callable[[Any], str | None]:
    """Return the check that no team, or no role, has the name that a form gives."""

    def check(form: Any) -> str | None:
        same_name = visit.rows(f"SELECT 1 FROM {kind}s WHERE name = ?", form["name"])
        return f"There is a {kind} {form['name']} already." if same_name else None

    return check
