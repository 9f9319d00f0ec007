"""Pages of the checkout: address, delivery, payment, review. The draft of the session keeps what was chosen."""

from __future__ import annotations

import sqlite3
from typing import Any

from starlette.responses import Response

from hud_benchmarks.autonomy.applications.shop.ordering import (
    CART,
    DELIVERIES,
    FREE_FROM,
    PAYMENTS,
    amounts,
    place,
)
from hud_benchmarks.autonomy.applications.shop.pages.cart import coupon_of
from hud_benchmarks.autonomy.web.pages import Section, Visit

section = Section()


@section.get("/checkout/address")
def address(visit: Visit) -> Response:
    return _step(visit, "address")


@section.post("/checkout/address")
def choose_address(visit: Visit) -> Response:
    form = visit.form
    if not form.get("address"):
        return _step(visit, "address", "Choose an address.")
    visit.row("SELECT 1 FROM addresses WHERE id = ?", form["address"])
    visit.session.draft["address"] = form["address"]
    return visit.go("/checkout/delivery")


@section.get("/checkout/delivery")
def delivery(visit: Visit) -> Response:
    return _step(visit, "delivery")


@section.post("/checkout/delivery")
def choose_delivery(visit: Visit) -> Response:
    form = visit.form
    if form.get("delivery") not in DELIVERIES:
        return _step(visit, "delivery", "Choose a delivery.")
    visit.session.draft |= {"delivery": form["delivery"], "gift_message": form["gift_message"]}
    return visit.go("/checkout/payment")


@section.get("/checkout/payment")
def payment(visit: Visit) -> Response:
    return _step(visit, "payment")


@section.post("/checkout/payment")
def choose_payment(visit: Visit) -> Response:
    form = visit.form
    if form.get("payment") not in PAYMENTS:
        return _step(visit, "payment", "Choose a payment.")
    visit.session.draft["payment"] = form["payment"]
    return visit.go("/checkout/review")


@section.get("/checkout/review")
def review(visit: Visit) -> Response:
    return _step(visit, "review")


@section.post("/checkout/review")
def place_order(visit: Visit) -> Response:
    if not visit.form.get("checked"):
        return _step(visit, "review", "Confirm that you have checked the order.")
    missing = _missing(visit, "review")
    if missing:
        return visit.go(missing)
    draft = visit.session.draft
    order = place(
        visit.db,
        _address(visit),
        draft["delivery"],
        draft["payment"],
        coupon_of(visit),
        draft["gift_message"],
    )
    draft.clear()
    return visit.go(f"/orders/{order}", f"Thank you. Your order has the number {order}.")


def _step(visit: Visit, step: str, *errors: str) -> Response:
    """Answer with a page of the checkout, or go to the one that must be filled first."""
    missing = _missing(visit, step)
    if missing:
        return visit.go(missing)
    draft, lines, coupon = visit.session.draft, visit.rows(CART), coupon_of(visit)
    values: dict[str, Any] = {"draft": draft, "errors": list(errors)}
    if step == "address":
        values["addresses"] = visit.rows("SELECT * FROM addresses ORDER BY id")
    elif step == "delivery":
        values |= {"deliveries": DELIVERIES, "free_from": FREE_FROM}
    elif step == "payment":
        values["payments"] = PAYMENTS
    else:
        values["address"] = _address(visit)
    sums = amounts(lines, coupon, draft.get("delivery", "standard"))
    return visit.page(f"checkout_{step}.html", lines=lines, coupon=coupon, amounts=sums, **values)


def _missing(visit: Visit, step: str) -> str:
    """Return the path of the page that comes first where something is missing for a step; empty where nothing is."""
    if not visit.rows("SELECT 1 FROM cart_lines"):
        return "/cart"
    for earlier in ("address", "delivery", "payment"):
        if earlier == step:
            break
        if earlier not in visit.session.draft:
            return f"/checkout/{earlier}"
    return ""


def _address(visit: Visit) -> sqlite3.Row:
    return visit.row("SELECT * FROM addresses WHERE id = ?", visit.session.draft["address"])
