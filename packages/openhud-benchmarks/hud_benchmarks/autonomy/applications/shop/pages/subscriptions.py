"""Pages of subscriptions."""

from __future__ import annotations

from datetime import date
from typing import Any

from starlette.responses import Response

from hud_benchmarks.autonomy.applications.shop.ordering import VARIANTS
from hud_benchmarks.autonomy.applications.shop.pages.catalogue import product_page
from hud_benchmarks.autonomy.applications.shop.seed import CONSUMED
from hud_benchmarks.autonomy.web.application import TODAY
from hud_benchmarks.autonomy.web.pages import Section, Visit

WEEKS = [(2, "2 weeks"), (4, "4 weeks"), (8, "8 weeks")]
SUBSCRIPTIONS = f"""
    SELECT s.*, v.name AS variant, v.product, v.category, v.price, v.stock, a.name AS address
    FROM subscriptions s JOIN ({VARIANTS}) v ON v.id = s.variant_id JOIN addresses a ON a.id = s.address_id
"""
section = Section()


@section.get("/subscriptions")
def subscriptions(visit: Visit) -> Response:
    return visit.page(
        "subscriptions.html", subscriptions=visit.rows(f"{SUBSCRIPTIONS} ORDER BY s.id")
    )


@section.get("/subscriptions/new")
def new(visit: Visit) -> Response:
    """Answer with the form for a variant, from the page of its product."""
    if not visit.query.get("variant"):
        return product_page(visit, int(visit.query["product"]), visit.query, "Choose a variant.")
    values = {"variant": visit.query["variant"], "quantity": visit.query["quantity"]}
    return _form(visit, values)


@section.post("/subscriptions/new")
def create(visit: Visit) -> Response:
    errors = _problems(visit.form)
    if errors:
        return _form(visit, visit.form, *errors)
    variant = visit.row(f"{VARIANTS} WHERE v.id = ?", visit.form["variant"])
    if variant["category"] not in CONSUMED:
        return _form(visit, visit.form, "There are no subscriptions of this article.")
    created = visit.insert(
        "subscriptions", variant_id=variant["id"], status="active", **_columns(visit.form)
    )
    return visit.go(f"/subscriptions/{created}", "The subscription begins.")


@section.get("/subscriptions/{id:int}")
def subscription(visit: Visit) -> Response:
    return _subscription_page(visit)


@section.post("/subscriptions/{id:int}")
def save(visit: Visit) -> Response:
    subscription = visit.row("SELECT * FROM subscriptions WHERE id = ?", visit.id)
    errors = _problems(visit.form)
    if subscription["status"] == "cancelled":
        errors.append("This subscription is cancelled.")
    if errors:
        return _subscription_page(visit, *errors)
    visit.update("subscriptions", visit.id, **_columns(visit.form))
    return visit.go(f"/subscriptions/{visit.id}", "Saved.")


@section.post("/subscriptions/{id:int}/pause")
def pause(visit: Visit) -> Response:
    """Pause an active subscription, or resume a paused one."""
    subscription = visit.row("SELECT * FROM subscriptions WHERE id = ?", visit.id)
    if subscription["status"] == "cancelled":
        return _subscription_page(visit, "This subscription is cancelled.")
    status = "paused" if subscription["status"] == "active" else "active"
    visit.update("subscriptions", visit.id, status=status)
    return visit.go(f"/subscriptions/{visit.id}", f"The subscription is {status}.")


@section.get("/subscriptions/{id:int}/cancel")
def ask_cancel(visit: Visit) -> Response:
    subscription = visit.row(f"{SUBSCRIPTIONS} WHERE s.id = ?", visit.id)
    return visit.page("subscription_cancel.html", subscription=subscription)


@section.post("/subscriptions/{id:int}/cancel")
def cancel(visit: Visit) -> Response:
    visit.update("subscriptions", visit.id, status="cancelled")
    return visit.go("/subscriptions", "The subscription is cancelled.")


def _subscription_page(visit: Visit, *errors: str) -> Response:
    subscription = visit.row(f"{SUBSCRIPTIONS} WHERE s.id = ?", visit.id)
    values = (
        dict(subscription)
        | {"address": subscription["address_id"]}
        | (visit.form if errors else {})
    )
    return visit.page(
        "subscription.html",
        subscription=subscription,
        values=values,
        weeks=WEEKS,
        addresses=_addresses(visit),
        errors=list(errors),
    )


def _form(visit: Visit, values: dict[str, Any], *errors: str) -> Response:
    return visit.page(
        "subscription_new.html",
        variant=visit.row(f"{VARIANTS} WHERE v.id = ?", values["variant"]),
        values=values,
        weeks=WEEKS,
        addresses=_addresses(visit),
        errors=list(errors),
    )


def _addresses(visit: Visit) -> list[tuple[int, str]]:
    """Options of the list of addresses."""
    return [(row["id"], row["name"]) for row in visit.rows("SELECT id, name FROM addresses")]


def _columns(form: dict[str, str]) -> dict[str, Any]:
    """Columns of a subscription from its form."""
    return {
        "quantity": int(form["quantity"]),
        "weeks": int(form["weeks"]),
        "next_delivery": form["next_delivery"],
        "address_id": int(form["address"]),
    }


def _problems(form: dict[str, str]) -> list[str]:
    """Sentences on what is wrong with the form of a subscription."""
    errors = []
    if not form["quantity"].isdecimal() or int(form["quantity"]) < 1:
        errors.append("A quantity is a number from 1.")
    if form["weeks"] not in [str(weeks) for weeks, _ in WEEKS]:
        errors.append("Choose an interval.")
    try:
        if date.fromisoformat(form["next_delivery"]) <= TODAY:
            errors.append("The next delivery is after today.")
    except ValueError:
        errors.append("The next delivery is written as 2026-03-31.")
    if not form["address"]:
        errors.append("Choose an address.")
    return errors
