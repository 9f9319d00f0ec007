"""Pages of the workspace itself: general settings, sign-in rules, billing."""

from __future__ import annotations

from starlette.responses import Response

from hud_benchmarks.autonomy.applications.settings.flow import Field, Step, agreed, follow, typed
from hud_benchmarks.autonomy.applications.settings.panel import pages
from hud_benchmarks.autonomy.applications.settings.seed import SETTINGS
from hud_benchmarks.autonomy.web.pages import Visit

PLANS = {"Starter": 4, "Team": 9, "Business": 15}
"""Price of a seat for a month, by plan."""


@pages.get("/")
def workspace(visit: Visit) -> Response:
    return visit.page(
        "workspace.html", general=_section(visit, "general"), security=_section(visit, "security")
    )


@pages.get("/general/edit")
@pages.post("/general/edit")
def edit_general(visit: Visit) -> Response:
    values = _section(visit, "general")
    name, *others = values
    fields = [
        Field(name, name),
        *(Field(other, other, SETTINGS["general"][other]) for other in others),
    ]
    steps = [Step("General settings", fields, button="Save settings")]
    page = follow(visit, steps, cancel="/", values=values)
    return page or _save(visit, "general", "/")


@pages.get("/security/edit")
@pages.post("/security/edit")
def edit_security(visit: Visit) -> Response:
    """Choose the rules, then read what follows from them."""
    values, required = _section(visit, "security"), "Second factor required of"
    where = {"everybody": "1", "administrators": "r.name IN ('Owner', 'Admin')"}
    (locked,) = visit.row(
        "SELECT count(*) FROM members m JOIN roles r ON r.id = m.role_id WHERE m.status = 'active'"
        f" AND m.second_factor = 'none' AND {where.get(visit.form.get(required, ''), '0')}"
    )
    steps = [
        Step("Sign-in rules", [Field(name, name, SETTINGS["security"][name]) for name in values]),
        Step(
            "Apply the sign-in rules?",
            [agreed("I have read this")],
            note=f"{locked} active members will have to set up a second factor when they sign in next.",
            facts=[(name, visit.form.get(name, "")) for name in values],
            button="Apply rules",
        ),
    ]
    page = follow(visit, steps, cancel="/", values=values)
    return page or _save(visit, "security", "/")


@pages.get("/billing")
def billing(visit: Visit) -> Response:
    values = _section(visit, "billing")
    (active,) = visit.row("SELECT count(*) FROM members WHERE status = 'active'")
    return visit.page("billing.html", billing=values, price=_price(values), active=active)


@pages.get("/billing/plan")
@pages.post("/billing/plan")
def change_plan(visit: Visit) -> Response:
    """Choose a plan, then seats and cycle, then read the price and confirm it by the name of the workspace."""
    form, values = visit.form, _section(visit, "billing")
    (active,) = visit.row("SELECT count(*) FROM members WHERE status = 'active'")
    wanted = {name: form.get(name, "") for name in ("Plan", "Seats", "Billing cycle")}
    confirmation, check = typed(
        "Name of the workspace", _section(visit, "general")["Workspace name"]
    )
    steps = [
        Step(
            "Choose a plan",
            [Field("Plan", "Plan", list(PLANS))],
            facts=[(plan, f"{price} EUR a seat and month") for plan, price in PLANS.items()],
        ),
        Step(
            "Seats and billing cycle",
            [Field("Seats", "Seats"), Field("Billing cycle", "Billing cycle", ["monthly", "yearly"])],
            note=f"{active} members are active. With a yearly cycle, two of twelve months are free.",
            check=lambda form: (
                None
                if form["Seats"].isdecimal() and active <= int(form["Seats"]) <= 500
                else f"Seats: a number from {active} to 500."
            ),
        ),
        Step(
            "Confirm the new plan",
            [confirmation],
            note="Type the name of the workspace to confirm.",
            facts=[*wanted.items(), ("Price", _price(wanted))],
            button="Change plan",
            check=check,
        ),
    ]  # fmt: skip
    page = follow(visit, steps, cancel="/billing", values=values)
    return page or _save(visit, "billing", "/billing")


@pages.get("/billing/invoices")
@pages.post("/billing/invoices")
def edit_invoices(visit: Visit) -> Response:
    values = _section(visit, "billing")
    fields = [Field(name, name) for name in ("Invoices go to", "Purchase order", "Cost centre")]
    steps = [
        Step(
            "Invoices",
            fields,
            button="Save invoice details",
            check=lambda form: (
                None if "@" in form["Invoices go to"] else "Invoices go to: an email address."
            ),
        )
    ]
    page = follow(visit, steps, cancel="/billing", values=values)
    return page or _save(visit, "billing", "/billing")


def _section(visit: Visit, section: str) -> dict[str, str]:
    """Return the settings of a section."""
    rows = visit.rows("SELECT name, value FROM settings WHERE section = ? ORDER BY id", section)
    return {row["name"]: row["value"] for row in rows}


def _save(visit: Visit, section: str, path: str) -> Response:
    """Store those settings of a section that the form has."""
    for name in _section(visit, section).keys() & visit.form.keys():
        visit.execute("UPDATE settings SET value = ? WHERE name = ?", visit.form[name], name)
    return visit.go(path, "Saved.")


def _price(values: dict[str, str]) -> str:
    if not values["Seats"].isdecimal() or values["Plan"] not in PLANS:
        return ""
    month = PLANS[values["Plan"]] * int(values["Seats"])
    return f"{month * 10} EUR a year" if values["Billing cycle"] == "yearly" else f"{month} EUR a month"  # fmt: skip
