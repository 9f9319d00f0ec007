"""Orders of the shop: lines, coupons, amounts in cents, and placing."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from hud_benchmarks.autonomy.web.application import TODAY
from hud_benchmarks.autonomy.web.rows import insert

DELIVERIES = {"standard": 490, "express": 990, "collection": 0}
"""Cost of each kind of delivery."""
FREE_FROM = 6000
"""Amount from which standard delivery costs nothing."""
PAYMENTS = ("Visa 4417", "Mastercard 8802", "Invoice")
VARIANTS = """
    SELECT v.*, p.name AS product, p.thing, p.brand, p.category, p.rating
    FROM variants v JOIN products p ON p.id = v.product_id
"""
LINES = """
    SELECT l.*, v.name AS variant, v.stock, p.name AS product, p.id AS product_id, p.brand, p.category, %s
    FROM %s l JOIN variants v ON v.id = l.variant_id JOIN products p ON p.id = v.product_id
"""
CART = LINES % ("v.price", "cart_lines") + " ORDER BY l.rowid"
ORDER_LINES = LINES % ("l.price", "order_lines")


@dataclass(frozen=True)
class Amounts:
    """Amounts of an order."""

    goods: int
    discount: int
    shipping: int

    @property
    def total(self) -> int:
        return self.goods - self.discount + self.shipping


def discount(lines: Sequence[sqlite3.Row], coupon: sqlite3.Row | None) -> int:
    """Return the amount that a coupon takes off; 0 where its conditions do not hold."""
    if coupon is None or coupon["until"] < TODAY.isoformat() or _goods(lines) < coupon["minimum"]:
        return 0
    meant = [line for line in lines if coupon["category"] in ("", line["category"])]
    return _goods(meant) * int(coupon["percent"]) // 100


def amounts(
    lines: Sequence[sqlite3.Row], coupon: sqlite3.Row | None, delivery: str = "standard"
) -> Amounts:
    """Return the amounts of an order of these lines."""
    goods, off = _goods(lines), discount(lines, coupon)
    free = delivery == "standard" and goods - off >= FREE_FROM
    return Amounts(goods, off, 0 if free else DELIVERIES[delivery])


def place(
    db: sqlite3.Connection,
    address: sqlite3.Row,
    delivery: str,
    payment: str,
    coupon: sqlite3.Row | None,
    gift_message: str = "",
) -> int:
    """Turn the lines of the cart into an order; return its id."""
    lines = db.execute(CART).fetchall()
    sums = amounts(lines, coupon, delivery)
    order = insert(
        db,
        "orders",
        placed=TODAY.isoformat(),
        status="open",
        **{name: address[name] for name in ("recipient", "street", "postcode", "city")},
        delivery=delivery,
        payment=payment,
        gift_message=gift_message,
        coupon=coupon["code"] if coupon is not None and sums.discount else "",
        goods=sums.goods,
        discount=sums.discount,
        shipping=sums.shipping,
    )
    for line in lines:
        insert(
            db,
            "order_lines",
            order_id=order,
            variant_id=line["variant_id"],
            quantity=line["quantity"],
            price=line["price"],
        )
    db.execute("DELETE FROM cart_lines")
    return order


def add_to_cart(db: sqlite3.Connection, variant: int, quantity: int) -> None:
    """Add pieces of a variant to the cart."""
    db.execute(
        "INSERT INTO cart_lines (variant_id, quantity) VALUES (?, ?)"
        " ON CONFLICT (variant_id) DO UPDATE SET quantity = quantity + excluded.quantity",
        (variant, quantity),
    )


def _goods(lines: Sequence[sqlite3.Row]) -> int:
    return sum(int(line["price"]) * int(line["quantity"]) for line in lines)
