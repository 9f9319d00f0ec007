"""Pages of accounts: search, details with activities and tasks, handing over several."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from hud_benchmarks.autonomy.applications.crm.pages import forms
from hud_benchmarks.autonomy.applications.crm.records import (
    ACTIVITIES,
    DEALS,
    INDUSTRIES,
    TASKS,
    reassign,
)
from hud_benchmarks.autonomy.web.application import TODAY
from hud_benchmarks.autonomy.web.pages import Section, Visit

ACCOUNTS = "SELECT a.*, u.name AS owner FROM accounts a JOIN users u ON u.id = a.owner_id"
section = Section()


@section.get("/")
def accounts(visit: Visit) -> Response:
    return _accounts_page(visit)


@section.post("/accounts/reassign")
def hand_over(visit: Visit) -> Response:
    """Ask for the new owner of the ticked accounts; the form of the last page reassigns them."""
    form = visit.form
    chosen = [
        row
        for row in visit.rows(f"{ACCOUNTS} ORDER BY a.name")
        if str(row["id"]) in visit.several("account")
    ]
    if not chosen:
        return _accounts_page(visit, "Tick at least one account.")
    owner = visit.rows("SELECT * FROM users WHERE id = ?", form.get("owner", ""))
    errors = [] if owner or "owner" not in form else ["Choose the new owner."]
    if not owner or form.get("confirmed") != "yes":
        return visit.page(
            "reassign.html",
            accounts=chosen,
            owner=owner[0] if owner else None,
            users=forms.users(visit),
            errors=errors,
        )
    ids = [row["id"] for row in chosen]
    reassign(visit.db, ids, owner[0]["id"], deals=form.get("deals") == "1")
    return visit.go("/", f"{len(ids)} accounts belong to {owner[0]['name']}.")


@section.get("/accounts/new")
def new(visit: Visit) -> Response:
    return _form(visit, None, {})


@section.post("/accounts/new")
def create(visit: Visit) -> Response:
    errors = _problems(visit, 0)
    if errors:
        return _form(visit, None, visit.form, *errors)
    created = visit.insert("accounts", **_columns(visit.form))
    return visit.go(f"/accounts/{created}", "The account is created.")


@section.get("/accounts/{id:int}")
def account(visit: Visit) -> Response:
    return _account_page(visit)


@section.get("/accounts/{id:int}/edit")
def edit(visit: Visit) -> Response:
    account = visit.row(f"{ACCOUNTS} WHERE a.id = ?", visit.id)
    return _form(visit, account, dict(account) | {"owner": account["owner_id"]})


@section.post("/accounts/{id:int}/edit")
def save(visit: Visit) -> Response:
    account = visit.row(f"{ACCOUNTS} WHERE a.id = ?", visit.id)
    errors = _problems(visit, visit.id)
    if errors:
        return _form(visit, account, visit.form, *errors)
    visit.update("accounts", visit.id, **_columns(visit.form))
    return visit.go(f"/accounts/{visit.id}", "Saved.")


@section.post("/accounts/{id:int}/activities")
def log(visit: Visit) -> Response:
    form = visit.form
    if form["kind"] not in ACTIVITIES or not form["summary"]:
        return _account_page(visit, "An activity has a kind and a summary.")
    visit.insert(
        "activities",
        account_id=visit.id,
        contact_id=form["contact"] or None,
        kind=form["kind"],
        summary=form["summary"],
        day=TODAY.isoformat(),
        author_id=visit.user,
    )
    return visit.go(f"/accounts/{visit.id}", "The activity is logged.")


@section.post("/accounts/{id:int}/tasks")
def add_task(visit: Visit) -> Response:
    form = visit.form
    errors = forms.day_problem(form["due"])
    if not form["title"]:
        errors.append("A task needs a title.")
    if not form["assignee"]:
        errors.append("Choose an assignee.")
    if errors:
        return _account_page(visit, *errors)
    visit.insert(
        "tasks",
        account_id=visit.id,
        title=form["title"],
        due=form["due"],
        assignee_id=int(form["assignee"]),
    )
    return visit.go(f"/accounts/{visit.id}", "The task is added.")


def _accounts_page(visit: Visit, *errors: str) -> Response:
    query = visit.query
    conditions, values = ["a.name LIKE ?"], [f"%{query.get('text', '')}%"]
    for name, column in (("industry", "a.industry"), ("owner", "a.owner_id")):
        if query.get(name):
            conditions.append(f"{column} = ?")
            values.append(query[name])
    where = " AND ".join(conditions)
    return visit.page(
        "accounts.html",
        listing=visit.listing(f"{ACCOUNTS} WHERE {where} ORDER BY a.name", *values, size=15),
        industries=INDUSTRIES,
        users=forms.users(visit),
        errors=list(errors),
    )


def _account_page(visit: Visit, *errors: str) -> Response:
    return visit.page(
        "account.html",
        account=visit.row(f"{ACCOUNTS} WHERE a.id = ?", visit.id),
        contacts=visit.rows("SELECT * FROM contacts WHERE account_id = ? ORDER BY id", visit.id),
        deals=visit.rows(f"{DEALS} WHERE d.account_id = ? ORDER BY d.id", visit.id),
        tasks=visit.rows(f"{TASKS} WHERE t.account_id = ? AND NOT t.done ORDER BY t.due", visit.id),
        activities=visit.rows(
            "SELECT v.*, u.name AS author, c.name AS contact, d.name AS deal FROM activities v"
            " JOIN users u ON u.id = v.author_id LEFT JOIN contacts c ON c.id = v.contact_id"
            " LEFT JOIN deals d ON d.id = v.deal_id WHERE v.account_id = ? ORDER BY v.id DESC",
            visit.id,
        ),
        kinds=ACTIVITIES,
        people=forms.contacts(visit, visit.id),
        users=forms.users(visit),
        errors=list(errors),
    )


def _form(visit: Visit, account: Any, values: Any, *errors: str) -> Response:
    return visit.page(
        "account_edit.html",
        account=account,
        values=values,
        industries=INDUSTRIES,
        users=forms.users(visit),
        errors=list(errors),
    )


def _columns(form: dict[str, str]) -> dict[str, Any]:
    """Columns of an account from its form."""
    columns: dict[str, Any] = {name: form[name] for name in ("name", "industry", "city")}
    return columns | {"owner_id": int(form["owner"])}


def _problems(visit: Visit, own: int) -> list[str]:
    """Sentences on what is wrong with the form of an account; `own` is its id, 0 for a new one."""
    form = visit.form
    errors = []
    if not all(form[name] for name in ("name", "industry", "city", "owner")):
        errors.append("Fill all fields.")
    if visit.rows("SELECT 1 FROM accounts WHERE name = ? AND id != ?", form["name"], own):
        errors.append(f"There is an account {form['name']} already.")
    return errors
