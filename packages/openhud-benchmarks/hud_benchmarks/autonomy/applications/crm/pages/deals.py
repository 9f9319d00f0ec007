"""Pages of deals: search, the pipeline, forms, stages."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from hud_benchmarks.autonomy.applications.crm.pages import forms
from hud_benchmarks.autonomy.applications.crm.records import (
    ACTIVITIES,
    DEALS,
    LOST_REASONS,
    OPEN_STAGES,
    STAGES,
)
from hud_benchmarks.autonomy.web.application import TODAY
from hud_benchmarks.autonomy.web.pages import Section, Visit

section = Section()


@section.get("/deals")
def deals(visit: Visit) -> Response:
    query = visit.query
    conditions, values = ["d.name LIKE ?"], [f"%{query.get('text', '')}%"]
    stage = query.get("stage", "open")
    if stage == "open":
        conditions.append("d.stage NOT IN ('won', 'lost')")
    elif stage:
        conditions.append("d.stage = ?")
        values.append(stage)
    if query.get("owner"):
        conditions.append("d.owner_id = ?")
        values.append(query["owner"])
    where = " AND ".join(conditions)
    return visit.page(
        "deals.html",
        listing=visit.listing(f"{DEALS} WHERE {where} ORDER BY d.closes, d.id", *values, size=15),
        stage=stage,
        stages=STAGES,
        users=forms.users(visit),
    )


@section.get("/pipeline")
def pipeline(visit: Visit) -> Response:
    deals = visit.rows(f"{DEALS} ORDER BY d.amount DESC, d.id")
    columns = {stage: [row for row in deals if row["stage"] == stage] for stage in OPEN_STAGES}
    return visit.page("pipeline.html", columns=columns)


@section.get("/accounts/{id:int}/deals/new")
def new(visit: Visit) -> Response:
    return _form(visit, visit.id, None, {"owner": visit.user})


@section.post("/accounts/{id:int}/deals/new")
def create(visit: Visit) -> Response:
    errors = _problems(visit, 0)
    if errors:
        return _form(visit, visit.id, None, visit.form, *errors)
    created = visit.insert(
        "deals", account_id=visit.id, stage="qualified", **_columns(visit.form)
    )  # fmt: skip
    return visit.go(f"/deals/{created}", "The deal is created.")


@section.get("/deals/{id:int}")
def deal(visit: Visit) -> Response:
    return _deal_page(visit)


@section.get("/deals/{id:int}/edit")
def edit(visit: Visit) -> Response:
    deal = visit.row(f"{DEALS} WHERE d.id = ?", visit.id)
    values = dict(deal) | {"owner": deal["owner_id"], "contact": deal["contact_id"]}
    return _form(visit, deal["account_id"], deal, values)


@section.post("/deals/{id:int}/edit")
def save(visit: Visit) -> Response:
    deal = visit.row(f"{DEALS} WHERE d.id = ?", visit.id)
    errors = _problems(visit, visit.id)
    if errors:
        return _form(visit, deal["account_id"], deal, visit.form, *errors)
    visit.update("deals", visit.id, **_columns(visit.form))
    return visit.go(f"/deals/{visit.id}", "Saved.")


@section.post("/deals/{id:int}/stage")
def move(visit: Visit) -> Response:
    if visit.form["stage"] not in (*OPEN_STAGES, "won"):
        return _deal_page(visit, "Choose a stage.")
    visit.update("deals", visit.id, stage=visit.form["stage"], lost_reason="")
    return visit.go(f"/deals/{visit.id}", f"The deal is in the stage {visit.form['stage']}.")


@section.get("/deals/{id:int}/lost")
def ask_lost(visit: Visit) -> Response:
    return _lost_page(visit)


@section.post("/deals/{id:int}/lost")
def lose(visit: Visit) -> Response:
    if visit.form["reason"] not in LOST_REASONS:
        return _lost_page(visit, "Choose a reason.")
    visit.update("deals", visit.id, stage="lost", lost_reason=visit.form["reason"])
    return visit.go(f"/deals/{visit.id}", "The deal is lost.")


@section.post("/deals/{id:int}/activities")
def log(visit: Visit) -> Response:
    form, deal = visit.form, visit.row("SELECT * FROM deals WHERE id = ?", visit.id)
    if form["kind"] not in ACTIVITIES or not form["summary"]:
        return _deal_page(visit, "An activity has a kind and a summary.")
    visit.insert(
        "activities",
        account_id=deal["account_id"],
        contact_id=deal["contact_id"],
        deal_id=visit.id,
        kind=form["kind"],
        summary=form["summary"],
        day=TODAY.isoformat(),
        author_id=visit.user,
    )
    return visit.go(f"/deals/{visit.id}", "The activity is logged.")


def _deal_page(visit: Visit, *errors: str) -> Response:
    return visit.page(
        "deal.html",
        deal=visit.row(f"{DEALS} WHERE d.id = ?", visit.id),
        quotes=visit.rows(
            "SELECT q.*, sum(l.quantity * l.price) AS goods FROM quotes q LEFT JOIN quote_lines l ON l.quote_id = q.id"
            " WHERE q.deal_id = ? GROUP BY q.id ORDER BY q.id",
            visit.id,
        ),
        activities=visit.rows(
            "SELECT v.*, u.name AS author FROM activities v JOIN users u ON u.id = v.author_id"
            " WHERE v.deal_id = ? ORDER BY v.id DESC",
            visit.id,
        ),
        stages=[*OPEN_STAGES, "won"],
        kinds=ACTIVITIES,
        errors=list(errors),
    )


def _lost_page(visit: Visit, *errors: str) -> Response:
    deal = visit.row(f"{DEALS} WHERE d.id = ?", visit.id)
    return visit.page("deal_lost.html", deal=deal, reasons=LOST_REASONS, errors=list(errors))


def _form(visit: Visit, account: int, deal: Any, values: Any, *errors: str) -> Response:
    return visit.page(
        "deal_edit.html",
        account=visit.row("SELECT * FROM accounts WHERE id = ?", account),
        deal=deal,
        values=values,
        contacts=forms.contacts(visit, account),
        users=forms.users(visit),
        errors=list(errors),
    )


def _columns(form: dict[str, str]) -> dict[str, Any]:
    """Columns of a deal from its form."""
    return {
        "name": form["name"],
        "amount": int(form["amount"]),
        "closes": form["closes"],
        "contact_id": form["contact"] or None,
        "owner_id": int(form["owner"]),
    }


def _problems(visit: Visit, own: int) -> list[str]:
    """Sentences on what is wrong with the form of a deal; `own` is its id, 0 for a new one."""
    form = visit.form
    errors = forms.number_problem("Amount", form["amount"]) + forms.day_problem(form["closes"])
    if not form["name"]:
        errors.append("A deal needs a name.")
    if visit.rows("SELECT 1 FROM deals WHERE name = ? AND id != ?", form["name"], own):
        errors.append(f"There is a deal {form['name']} already.")
    return errors
