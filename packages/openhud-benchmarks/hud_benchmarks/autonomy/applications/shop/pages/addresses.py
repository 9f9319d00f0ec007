"""Pages of the address book."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from hud_benchmarks.autonomy.web.pages import Section, Visit

FIELDS = ("name", "recipient", "street", "postcode", "city")
section = Section()


@section.get("/addresses")
def addresses(visit: Visit) -> Response:
    rows = visit.rows(
        "SELECT a.*, (SELECT count(*) FROM subscriptions s WHERE s.address_id = a.id AND s.status != 'cancelled')"
        " AS subscriptions FROM addresses a ORDER BY id"
    )
    return visit.page("addresses.html", addresses=rows)


@section.get("/addresses/new")
def new(visit: Visit) -> Response:
    return visit.page("address.html", address=None, values={})


@section.post("/addresses/new")
def create(visit: Visit) -> Response:
    values = {name: visit.form[name] for name in FIELDS}
    errors = _problems(visit, values, 0)
    if errors:
        return visit.page("address.html", address=None, values=values, errors=errors)
    visit.insert("addresses", **values)
    return visit.go("/addresses", f"The address {values['name']} is saved.")


@section.get("/addresses/{id:int}")
def edit(visit: Visit) -> Response:
    address = visit.row("SELECT * FROM addresses WHERE id = ?", visit.id)
    return visit.page("address.html", address=address, values=address)


@section.post("/addresses/{id:int}")
def save(visit: Visit) -> Response:
    address = visit.row("SELECT * FROM addresses WHERE id = ?", visit.id)
    values = {name: visit.form[name] for name in FIELDS}
    errors = _problems(visit, values, visit.id)
    if errors:
        return visit.page("address.html", address=address, values=values, errors=errors)
    visit.update("addresses", visit.id, **values)
    return visit.go("/addresses", f"The address {values['name']} is saved.")


@section.post("/addresses/{id:int}/prefer")
def prefer(visit: Visit) -> Response:
    visit.execute("UPDATE addresses SET preferred = (id = ?)", visit.id)
    return visit.go("/addresses", "This is now the preferred address.")


@section.get("/addresses/{id:int}/delete")
def ask_delete(visit: Visit) -> Response:
    return _delete_page(visit)


@section.post("/addresses/{id:int}/delete")
def delete(visit: Visit) -> Response:
    address = visit.row("SELECT * FROM addresses WHERE id = ?", visit.id)
    if address["preferred"]:
        return _delete_page(visit, "Prefer another address first.")
    if visit.rows("SELECT 1 FROM subscriptions WHERE address_id = ?", visit.id):
        return _delete_page(visit, "Subscriptions go to this address.")
    visit.execute("DELETE FROM addresses WHERE id = ?", visit.id)
    return visit.go("/addresses", f"The address {address['name']} is deleted.")


def _delete_page(visit: Visit, *errors: str) -> Response:
    address = visit.row("SELECT * FROM addresses WHERE id = ?", visit.id)
    return visit.page("address_delete.html", address=address, errors=list(errors))


def _problems(visit: Visit, values: dict[str, Any], own: int) -> list[str]:
    """Sentences on what is wrong with an address; `own` is its id, 0 for a new one."""
    errors = []
    if not all(values.values()):
        errors.append("Fill all fields.")
    if visit.rows("SELECT 1 FROM addresses WHERE name = ? AND id != ?", values["name"], own):
        errors.append(f"There is an address {values['name']} already.")
    return errors
