"""Pages of notifications and retention."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.responses import Response

from hud_benchmarks.autonomy.applications.settings.flow import Field, Step, agreed, follow
from hud_benchmarks.autonomy.applications.settings.panel import pages, shown, teams
from hud_benchmarks.autonomy.applications.settings.seed import AUDIENCES, CHANNELS, PACES
from hud_benchmarks.autonomy.web.pages import Visit

RETENTION = "SELECT r.*, t.name AS hold FROM retention r LEFT JOIN teams t ON t.id = r.hold_id"


@pages.get("/notifications")
def notifications(visit: Visit) -> Response:
    rows = visit.rows(
        "SELECT audience, sum(pace != 'off') AS sent, count(*) AS total FROM notifications GROUP BY audience ORDER BY min(id)"
    )
    return visit.page("notifications.html", audiences=rows)


@pages.get("/notifications/{id:int}")
def audience(visit: Visit) -> Response:
    name = _audience(visit)
    rows = visit.rows("SELECT * FROM notifications WHERE audience = ? ORDER BY id", name)
    matrix: dict[str, dict[str, object]] = {}
    for row in rows:
        matrix.setdefault(row["event"], {})[row["channel"]] = row
    return visit.page("audience.html", name=name, matrix=matrix, channels=CHANNELS, paces=PACES)


@pages.post("/notifications/{id:int}")
def save_audience(visit: Visit) -> Response:
    name = _audience(visit)
    for row in visit.rows("SELECT id FROM notifications WHERE audience = ?", name):
        visit.update("notifications", row["id"], pace=visit.form[f"pace-{row['id']}"])
    return visit.go("/notifications", f"The notifications of {name} are saved.")


@pages.get("/retention")
def retention(visit: Visit) -> Response:
    return visit.page("retention.html", policies=visit.rows(f"{RETENTION} ORDER BY r.kind"))


@pages.get("/retention/{id:int}/edit")
@pages.post("/retention/{id:int}/edit")
def edit_policy(visit: Visit) -> Response:
    """Choose a policy, then read what it will do."""
    policy, form = visit.row(f"{RETENTION} WHERE r.id = ?", visit.id), visit.form
    days = form.get("days", "")
    gone = policy["items"] * 7 // int(days) if days.isdecimal() and int(days) else 0
    steps = [
        Step(
            f"Retention of {policy['kind']}",
            [
                Field("Days", "days"),
                Field("Then", "action", ["delete", "archive"]),
                Field("Legal hold for", "hold", teams(visit), optional=True),
            ],
            check=lambda form: (
                None
                if form["days"].isdecimal() and 1 <= int(form["days"]) <= 3650
                else "Days: a number from 1 to 3650."
            ),
        ),
        Step(
            f"Apply the policy for {policy['kind']}?",
            [agreed("I understand what happens")],
            note=f"About {gone} of {policy['items']} items are older than that, and go tonight.",
            facts=[
                ("Days", days), ("Then", form.get("action")),
                ("Legal hold for", shown(teams(visit), form.get("hold"))),
            ],
            button="Apply policy",
        ),
    ]  # fmt: skip
    values = {"days": policy["days"], "action": policy["action"], "hold": policy["hold_id"] or ""}
    page = follow(visit, steps, cancel="/retention", values=values)
    if page is not None:
        return page
    visit.update(
        "retention", visit.id, days=int(days), action=form["action"], hold_id=form["hold"] or None
    )
    return visit.go("/retention", f"The policy for {policy['kind']} is applied.")


def _audience(visit: Visit) -> str:
    """Return the audience that the path numbers, from 1."""
    if not 1 <= visit.id <= len(AUDIENCES):
        raise HTTPException(404)
    return AUDIENCES[visit.id - 1]
