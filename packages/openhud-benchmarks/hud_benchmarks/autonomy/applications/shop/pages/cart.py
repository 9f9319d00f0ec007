"""Pages of the cart: lines with quantities, and a coupon."""

from __future__ import annotations

import sqlite3

from starlette.responses import Response

from hud_benchmarks.autonomy.applications.shop.ordering import (
    CART,
    VARIANTS,
    add_to_cart,
    amounts,
    discount,
)
from hud_benchmarks.autonomy.applications.shop.pages.catalogue import product_page
from hud_benchmarks.autonomy.applications.shop.seed import LATER
from hud_benchmarks.autonomy.web.application import TODAY
from hud_benchmarks.autonomy.web.pages import Section, Visit

section = Section()


@section.get("/cart")
def cart(visit: Visit) -> Response:
    return _cart_page(visit)


@section.post("/cart")
def add(visit: Visit) -> Response:
    """Add pieces of a variant, from the page of its product."""
    form = visit.form
    if not form["variant"]:
        return product_page(visit, int(form["product"]), form, "Choose a variant.")
    variant = visit.row(f"{VARIANTS} WHERE v.id = ?", form["variant"])
    quantity = form["quantity"]
    there = visit.rows("SELECT quantity FROM cart_lines WHERE variant_id = ?", variant["id"])
    error = _problem(quantity, variant["stock"], there[0]["quantity"] if there else 0)
    if error:
        return product_page(visit, variant["product_id"], form, error)
    add_to_cart(visit.db, variant["id"], int(quantity))
    return visit.go("/cart", f"{variant['product']}, {variant['name']}, is in the cart.")


@section.post("/cart/{id:int}/quantity")
def change(visit: Visit) -> Response:
    variant = visit.row(f"{VARIANTS} WHERE v.id = ?", visit.id)
    error = _problem(visit.form["quantity"], variant["stock"])
    if error:
        return _cart_page(visit, f"{variant['product']}: {error}")
    visit.execute(
        "UPDATE cart_lines SET quantity = ? WHERE variant_id = ?", int(visit.form["quantity"]), visit.id
    )  # fmt: skip
    return visit.go("/cart", "The quantity is changed.")


@section.post("/cart/{id:int}/remove")
def remove(visit: Visit) -> Response:
    visit.execute("DELETE FROM cart_lines WHERE variant_id = ?", visit.id)
    return visit.go("/cart", "The article is removed.")


@section.post("/cart/{id:int}/later")
def save_for_later(visit: Visit) -> Response:
    visit.row("SELECT 1 FROM cart_lines WHERE variant_id = ?", visit.id)
    place = visit.row("SELECT id FROM lists WHERE name = ?", LATER)["id"]
    visit.execute("INSERT OR IGNORE INTO list_items VALUES (?, ?)", place, visit.id)
    visit.execute("DELETE FROM cart_lines WHERE variant_id = ?", visit.id)
    return visit.go("/cart", f"The article is on the list '{LATER}'.")


@section.post("/cart/coupon")
def apply_coupon(visit: Visit) -> Response:
    code = visit.form["code"].upper()
    coupons = visit.rows("SELECT * FROM coupons WHERE code = ?", code)
    if not coupons:
        return _cart_page(visit, f"There is no coupon {code}.")
    if coupons[0]["until"] < TODAY.isoformat():
        return _cart_page(visit, f"The coupon {code} has expired.")
    if not discount(visit.rows(CART), coupons[0]):
        return _cart_page(visit, f"The coupon {code} is not for this cart. See its conditions.")
    visit.session.draft["coupon"] = code
    return visit.go("/cart", f"The coupon {code} is applied.")


@section.post("/cart/coupon/remove")
def remove_coupon(visit: Visit) -> Response:
    visit.session.draft.pop("coupon", None)
    return visit.go("/cart", "The coupon is removed.")


def coupon_of(visit: Visit) -> sqlite3.Row | None:
    """Return the coupon that is applied to the cart."""
    code = visit.session.draft.get("coupon", "")
    coupons = visit.rows("SELECT * FROM coupons WHERE code = ?", code)
    return coupons[0] if coupons else None


def _cart_page(visit: Visit, *errors: str) -> Response:
    lines, coupon = visit.rows(CART), coupon_of(visit)
    return visit.page(
        "cart.html",
        lines=lines,
        coupon=coupon,
        amounts=amounts(lines, coupon),
        later=LATER,
        errors=list(errors),
    )


def _problem(quantity: str, stock: int, there: int = 0) -> str:
    """Sentence on what is wrong with a quantity; empty where nothing is."""
    if not quantity.isdecimal() or int(quantity) < 1:
        return "A quantity is a number from 1."
    if stock == 0:
        return "This variant is out of stock."
    if int(quantity) + there > stock:
        return f"Only {stock} are in stock."
    return ""
