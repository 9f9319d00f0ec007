"""Pages of quotes: lines, conditions, sending."""

from __future__ import annotations

import sqlite3

from starlette.responses import Response

from hud_benchmarks.autonomy.applications.crm.pages import forms
from hud_benchmarks.autonomy.web.pages import Section, Visit

QUOTES = "SELECT q.*, d.name AS deal FROM quotes q JOIN deals d ON d.id = q.deal_id"
section = Section()


@section.get("/products")
def products(visit: Visit) -> Response:
    return visit.page("products.html", products=visit.rows("SELECT * FROM products ORDER BY name"))


@section.post("/deals/{id:int}/quotes")
def create(visit: Visit) -> Response:
    visit.row("SELECT 1 FROM deals WHERE id = ?", visit.id)
    created = visit.insert("quotes", deal_id=visit.id, status="draft")
    return visit.go(f"/quotes/{created}", "The quote is a draft. Add its lines.")


@section.get("/quotes/{id:int}")
def quote(visit: Visit) -> Response:
    return _quote_page(visit)


@section.post("/quotes/{id:int}/lines")
def add_line(visit: Visit) -> Response:
    form, errors = visit.form, _sent(visit)
    errors += forms.number_problem("Quantity", form["quantity"])
    if not form["product"]:
        errors.append("Choose a product.")
    if errors:
        return _quote_page(visit, *errors)
    product = visit.row("SELECT * FROM products WHERE id = ?", form["product"])
    visit.insert(
        "quote_lines",
        quote_id=visit.id,
        product_id=product["id"],
        quantity=int(form["quantity"]),
        price=product["price"],
    )
    return visit.go(f"/quotes/{visit.id}", "The line is added.")


@section.post("/quotes/{id:int}/lines/remove")
def remove_line(visit: Visit) -> Response:
    errors = _sent(visit)
    if errors:
        return _quote_page(visit, *errors)
    visit.execute(
        "DELETE FROM quote_lines WHERE id = ? AND quote_id = ?", visit.form["line"], visit.id
    )
    return visit.go(f"/quotes/{visit.id}", "The line is removed.")


@section.post("/quotes/{id:int}")
def save(visit: Visit) -> Response:
    form, errors = visit.form, _sent(visit)
    errors += forms.day_problem(form["valid_until"])
    if not form["discount"].isdecimal() or int(form["discount"]) > 30:
        errors.append("A discount is a whole number from 0 to 30.")
    if errors:
        return _quote_page(visit, *errors)
    visit.update(
        "quotes", visit.id, discount=int(form["discount"]), valid_until=form["valid_until"]
    )
    return visit.go(f"/quotes/{visit.id}", "Saved.")


@section.get("/quotes/{id:int}/send")
def ask_send(visit: Visit) -> Response:
    return visit.page("quote_send.html", quote=_quote(visit), lines=_lines(visit))


@section.post("/quotes/{id:int}/send")
def send(visit: Visit) -> Response:
    quote, errors = _quote(visit), _sent(visit)
    if not _lines(visit):
        errors.append("A quote needs lines.")
    if not quote["valid_until"]:
        errors.append("Set a day until which the quote is valid.")
    if errors:
        return _quote_page(visit, *errors)
    visit.update("quotes", visit.id, status="sent")
    return visit.go(f"/deals/{quote['deal_id']}", f"Quote {visit.id} is sent.")


def _quote_page(visit: Visit, *errors: str) -> Response:
    quote = _quote(visit)
    products = visit.rows("SELECT id, name FROM products ORDER BY name")
    return visit.page(
        "quote.html",
        quote=quote,
        lines=_lines(visit),
        products=[tuple(row) for row in products],
        errors=list(errors),
    )


def _quote(visit: Visit) -> sqlite3.Row:
    return visit.row(f"{QUOTES} WHERE q.id = ?", visit.id)


def _lines(visit: Visit) -> list[sqlite3.Row]:
    return visit.rows(
        "SELECT l.*, p.name AS product FROM quote_lines l JOIN products p ON p.id = l.product_id"
        " WHERE l.quote_id = ? ORDER BY l.id",
        visit.id,
    )


def _sent(visit: Visit) -> list[str]:
    """Sentence on a quote that cannot be changed any more."""
    return ["A quote that is sent stays as it is."] if _quote(visit)["status"] == "sent" else []
