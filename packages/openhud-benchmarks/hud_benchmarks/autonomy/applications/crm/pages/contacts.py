"""Pages of contacts: search, forms, and merging in two pages."""

from __future__ import annotations

import sqlite3
from typing import Any

from starlette.responses import Response

from hud_benchmarks.autonomy.applications.crm.records import CONTACTS, MERGED, ROLES, merge
from hud_benchmarks.autonomy.web.application import TODAY
from hud_benchmarks.autonomy.web.pages import Section, Visit

section = Section()


@section.get("/contacts")
def contacts(visit: Visit) -> Response:
    return _contacts_page(visit)


@section.post("/contacts/merge")
def merge_contacts(visit: Visit) -> Response:
    """Ask for what stays of the ticked contacts; the form of the last page merges them."""
    form, ticked = visit.form, visit.several("contact")
    chosen = [row for row in visit.rows(f"{CONTACTS} ORDER BY c.id") if str(row["id"]) in ticked]
    if len(chosen) < 2:
        return _contacts_page(visit, "Tick at least two contacts.")
    if len({row["account_id"] for row in chosen}) > 1:
        return _contacts_page(visit, "Only contacts of one account can be merged.")
    if "kept" not in form:
        return _merge_page(visit, chosen)
    lasting = [row for row in chosen if str(row["id"]) == form["kept"]]
    are_values_of_records = all(form[name] in [row[name] for row in chosen] for name in MERGED)
    if not lasting or not are_values_of_records:
        return _merge_page(visit, chosen, "Choose the record that stays, and a value of each field.")  # fmt: skip
    others = [row for row in chosen if row["id"] != lasting[0]["id"]]
    if form.get("confirmed") != "yes":
        return visit.page("merge_review.html", kept=lasting[0], others=others, values=form)
    merge(visit.db, lasting[0]["id"], [row["id"] for row in others], form)
    return visit.go(f"/contacts/{lasting[0]['id']}", f"{len(chosen)} contacts are one now.")


@section.get("/contacts/{id:int}")
def contact(visit: Visit) -> Response:
    return visit.page(
        "contact.html",
        contact=visit.row(f"{CONTACTS} WHERE c.id = ?", visit.id),
        deals=visit.rows("SELECT * FROM deals WHERE contact_id = ? ORDER BY id", visit.id),
        activities=visit.rows(
            "SELECT v.*, u.name AS author FROM activities v JOIN users u ON u.id = v.author_id"
            " WHERE v.contact_id = ? ORDER BY v.id DESC",
            visit.id,
        ),
    )


@section.get("/accounts/{id:int}/contacts/new")
def new(visit: Visit) -> Response:
    return _form(visit, visit.id, None, {})


@section.post("/accounts/{id:int}/contacts/new")
def create(visit: Visit) -> Response:
    errors = _problems(visit.form)
    if errors:
        return _form(visit, visit.id, None, visit.form, *errors)
    visit.insert(
        "contacts", account_id=visit.id, added=TODAY.isoformat(), **_columns(visit.form)
    )  # fmt: skip
    return visit.go(f"/accounts/{visit.id}", f"{visit.form['name']} is a contact.")


@section.get("/contacts/{id:int}/edit")
def edit(visit: Visit) -> Response:
    contact = visit.row(f"{CONTACTS} WHERE c.id = ?", visit.id)
    return _form(visit, contact["account_id"], contact, contact)


@section.post("/contacts/{id:int}/edit")
def save(visit: Visit) -> Response:
    contact = visit.row(f"{CONTACTS} WHERE c.id = ?", visit.id)
    errors = _problems(visit.form)
    if errors:
        return _form(visit, contact["account_id"], contact, visit.form, *errors)
    visit.update("contacts", visit.id, **_columns(visit.form))
    return visit.go(f"/contacts/{visit.id}", "Saved.")


def _contacts_page(visit: Visit, *errors: str) -> Response:
    text = f"%{visit.query.get('text', '')}%"
    listing = visit.listing(
        f"{CONTACTS} WHERE c.name LIKE ? OR c.email LIKE ? OR a.name LIKE ? ORDER BY a.name, c.id",
        text,
        text,
        text,
        size=15,
    )
    return visit.page("contacts.html", listing=listing, errors=list(errors))


def _merge_page(visit: Visit, chosen: list[sqlite3.Row], *errors: str) -> Response:
    # dict.fromkeys: equal values are one option.
    values = {name: list(dict.fromkeys(row[name] for row in chosen)) for name in MERGED}
    return visit.page("merge.html", contacts=chosen, options=values, errors=list(errors))


def _form(
    visit: Visit, account: int, contact: sqlite3.Row | None, values: Any, *errors: str
) -> Response:
    return visit.page(
        "contact_edit.html",
        account=visit.row("SELECT * FROM accounts WHERE id = ?", account),
        contact=contact,
        values=values,
        roles=ROLES,
        errors=list(errors),
    )


def _columns(form: dict[str, str]) -> dict[str, str]:
    """Columns of a contact from its form."""
    return {name: form[name] for name in MERGED}


def _problems(form: dict[str, str]) -> list[str]:
    """Sentences on what is wrong with the form of a contact."""
    errors = []
    if not form["name"]:
        errors.append("A contact needs a name.")
    if "@" not in form["email"]:
        errors.append("This is no address.")
    if form["role"] not in ROLES:
        errors.append("Choose a role.")
    return errors
