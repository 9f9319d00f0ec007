"""Pages of orders: history, cancelling, another address, ordering again."""

from __future__ import annotations

from starlette.responses import Response

from hud_benchmarks.autonomy.applications.shop.ordering import ORDER_LINES, add_to_cart
from hud_benchmarks.autonomy.web.pages import Section, Visit

STATUSES = ["open", "shipped", "delivered", "cancelled"]
CANCELLATIONS = ["ordered by mistake", "found cheaper", "takes too long", "recalled"]
section = Section()


@section.get("/orders")
def orders(visit: Visit) -> Response:
    query = visit.query
    text = f"%{query.get('text', '')}%"
    conditions = f"o.id IN (SELECT order_id FROM ({ORDER_LINES}) WHERE product LIKE ?)"
    values = [text]
    if query.get("status"):
        conditions += " AND o.status = ?"
        values.append(query["status"])
    listing = visit.listing(
        "SELECT o.*, (SELECT sum(quantity) FROM order_lines WHERE order_id = o.id) AS pieces FROM orders o"
        f" WHERE {conditions} ORDER BY o.id DESC",
        *values,
    )
    return visit.page("orders.html", listing=listing, statuses=STATUSES)


@section.get("/orders/{id:int}")
def order(visit: Visit) -> Response:
    row = visit.row("SELECT * FROM orders WHERE id = ?", visit.id)
    lines = visit.rows(
        f"SELECT l.*, r.return_id FROM ({ORDER_LINES} WHERE l.order_id = ?) l"
        " LEFT JOIN return_lines r ON r.line_id = l.id ORDER BY l.id",
        visit.id,
    )
    return visit.page("order.html", order=row, lines=lines)


@section.post("/orders/{id:int}/again")
def order_again(visit: Visit) -> Response:
    lines = visit.rows(f"{ORDER_LINES} WHERE l.order_id = ? ORDER BY l.id", visit.id)
    for line in lines:
        if line["stock"]:
            add_to_cart(visit.db, line["variant_id"], line["quantity"])
    gone = [line["product"] for line in lines if not line["stock"]]
    left = f" Out of stock: {', '.join(gone)}." if gone else ""
    return visit.go("/cart", f"The articles of order {visit.id} are in the cart.{left}")


@section.get("/orders/{id:int}/cancel")
def ask_cancel(visit: Visit) -> Response:
    return _cancel_page(visit)


@section.post("/orders/{id:int}/cancel")
def cancel(visit: Visit) -> Response:
    row = visit.row("SELECT * FROM orders WHERE id = ?", visit.id)
    if row["status"] != "open":
        return _cancel_page(visit, "Only an open order can be cancelled.")
    if visit.form["reason"] not in CANCELLATIONS:
        return _cancel_page(visit, "Choose a reason.")
    visit.update("orders", visit.id, status="cancelled", cancellation=visit.form["reason"])
    return visit.go(f"/orders/{visit.id}", f"Order {visit.id} is cancelled.")


@section.get("/orders/{id:int}/address")
def ask_address(visit: Visit) -> Response:
    return _address_page(visit)


@section.post("/orders/{id:int}/address")
def change_address(visit: Visit) -> Response:
    row = visit.row("SELECT * FROM orders WHERE id = ?", visit.id)
    if row["status"] != "open":
        return _address_page(visit, "The address of an open order alone can be changed.")
    if not visit.form["address"]:
        return _address_page(visit, "Choose an address.")
    new = visit.row(
        "SELECT recipient, street, postcode, city FROM addresses WHERE id = ?", visit.form["address"]
    )  # fmt: skip
    visit.update("orders", visit.id, **dict(new))
    return visit.go(f"/orders/{visit.id}", "The address is changed.")


def _cancel_page(visit: Visit, *errors: str) -> Response:
    row = visit.row("SELECT * FROM orders WHERE id = ?", visit.id)
    return visit.page(
        "order_cancel.html", order=row, reasons=CANCELLATIONS, errors=list(errors)
    )  # fmt: skip


def _address_page(visit: Visit, *errors: str) -> Response:
    return visit.page(
        "order_address.html",
        order=visit.row("SELECT * FROM orders WHERE id = ?", visit.id),
        addresses=[tuple(row) for row in visit.rows("SELECT id, name FROM addresses ORDER BY id")],
        errors=list(errors),
    )
