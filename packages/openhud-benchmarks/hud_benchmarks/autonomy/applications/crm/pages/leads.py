"""Pages of leads: search, disqualifying, and converting in four pages. The draft of the session keeps what was filled."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from hud_benchmarks.autonomy.applications.crm.pages import forms
from hud_benchmarks.autonomy.applications.crm.records import (
    DISQUALIFICATIONS,
    INDUSTRIES,
    ROLES,
    SOURCES,
    convert,
)
from hud_benchmarks.autonomy.web.pages import Section, Visit

STEPS = {"account": "contact", "contact": "deal", "deal": "review"}
"""Page that follows each page of a conversion."""
FIELDS = {
    "account": ("account", "industry", "city"),
    "contact": ("role",),
    "deal": ("name", "amount", "closes"),
}
section = Section()


@section.get("/leads")
def leads(visit: Visit) -> Response:
    query = visit.query
    text = f"%{query.get('text', '')}%"
    conditions, values = ["(name LIKE ? OR company LIKE ?)"], [text, text]
    for name in ("source", "status"):
        if query.get(name):
            conditions.append(f"{name} = ?")
            values.append(query[name])
    listing = visit.listing(
        f"SELECT * FROM leads WHERE {' AND '.join(conditions)} ORDER BY id DESC", *values, size=20
    )
    return visit.page("leads.html", listing=listing, sources=SOURCES)


@section.get("/leads/{id:int}")
def lead(visit: Visit) -> Response:
    return _lead_page(visit)


@section.post("/leads/{id:int}/disqualify")
def disqualify(visit: Visit) -> Response:
    if _lead(visit)["status"] != "new":
        return _lead_page(visit, "Only a new lead can be disqualified.")
    if visit.form["reason"] not in DISQUALIFICATIONS:
        return _lead_page(visit, "Choose a reason.")
    visit.update("leads", visit.id, status="disqualified", reason=visit.form["reason"])
    return visit.go(f"/leads/{visit.id}", "The lead is disqualified.")


@section.get("/leads/{id:int}/convert/{step}")
def step(visit: Visit) -> Response:
    lead, name = _lead(visit), str(visit.request.path_params["step"])
    if lead["status"] != "new":
        return visit.go(f"/leads/{visit.id}", "Only a new lead can be converted.")
    for earlier in FIELDS:
        if earlier == name:
            return _step_page(visit, lead, name, visit.session.draft)
        if any(f"{visit.id} {field}" not in visit.session.draft for field in FIELDS[earlier]):
            return visit.go(f"/leads/{visit.id}/convert/{earlier}")
    return _step_page(visit, lead, "review", visit.session.draft)


@section.post("/leads/{id:int}/convert/{step}")
def go_on(visit: Visit) -> Response:
    """Check and keep the fields of a page; convert after the last one."""
    lead, name = _lead(visit), str(visit.request.path_params["step"])
    if lead["status"] != "new":
        return visit.go(f"/leads/{visit.id}", "Only a new lead can be converted.")
    if name == "review":
        return _convert(visit, lead)
    draft = {f"{visit.id} {field}": visit.form[field] for field in FIELDS[name]}
    errors = _problems(visit, lead, name)
    if errors:
        return _step_page(visit, lead, name, draft, *errors)
    visit.session.draft |= draft
    return visit.go(f"/leads/{visit.id}/convert/{STEPS[name]}")


def _convert(visit: Visit, lead: sqlite3.Row) -> Response:
    values = _values(visit, visit.session.draft)
    new = {name: values[name] for name in ("industry", "city")}
    deal = convert(
        visit.db,
        lead,
        int(values["account"]) if values["account"] else new,
        values["role"],
        {
            "name": values["name"],
            "amount": int(values["amount"]),
            "closes": values["closes"],
        },
        visit.user,
    )
    visit.session.draft.clear()
    return visit.go(f"/deals/{deal}", f"{lead['name']} is converted.")


def _problems(visit: Visit, lead: sqlite3.Row, step: str) -> list[str]:
    """Sentences on what is wrong with the fields of a page of a conversion."""
    form = visit.form
    if step == "contact":
        return [] if form["role"] in ROLES else ["Choose a role."]
    if step == "deal":
        errors = forms.number_problem("Amount", form["amount"]) + forms.day_problem(form["closes"])
        if not form["name"]:
            errors.append("A deal needs a name.")
        if visit.rows("SELECT 1 FROM deals WHERE name = ?", form["name"]):
            errors.append(f"There is a deal {form['name']} already.")
        return errors
    if form["account"]:
        visit.row("SELECT 1 FROM accounts WHERE id = ?", form["account"])
        return []
    errors = []
    if visit.rows("SELECT 1 FROM accounts WHERE name = ?", lead["company"]):
        errors.append(f"There is an account {lead['company']} already.")
    if form["industry"] not in INDUSTRIES or not form["city"]:
        errors.append("A new account has an industry and a city.")
    return errors


def _lead(visit: Visit) -> sqlite3.Row:
    return visit.row("SELECT * FROM leads WHERE id = ?", visit.id)


def _lead_page(visit: Visit, *errors: str) -> Response:
    return visit.page(
        "lead.html", lead=_lead(visit), reasons=DISQUALIFICATIONS, errors=list(errors)
    )


def _step_page(
    visit: Visit, lead: sqlite3.Row, step: str, draft: Mapping[str, str], *errors: str
) -> Response:
    values = _values(visit, draft)
    chosen = visit.rows("SELECT name FROM accounts WHERE id = ?", values.get("account", ""))
    return visit.page(
        f"convert_{step}.html",
        lead=lead,
        values=values,
        chosen=chosen[0]["name"] if chosen else "",
        accounts=forms.accounts(visit),
        industries=INDUSTRIES,
        roles=ROLES,
        errors=list(errors),
    )


def _values(visit: Visit, draft: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of this lead's conversion."""
    prefix = f"{visit.id} "
    return {name.removeprefix(prefix): value for name, value in draft.items() if name.startswith(prefix)}  # fmt: skip
