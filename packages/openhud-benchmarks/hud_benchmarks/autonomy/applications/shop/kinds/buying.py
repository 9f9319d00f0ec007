"""Kinds of tasks that fill the cart: supplies by description, an order once more, lists."""

from __future__ import annotations

import sqlite3
from random import Random
from typing import TYPE_CHECKING, Any

from hud_benchmarks.autonomy.applications.shop.ordering import (
    CART,
    DELIVERIES,
    ORDER_LINES,
    PAYMENTS,
    VARIANTS,
    add_to_cart,
    discount,
    place,
)
from hud_benchmarks.autonomy.applications.shop.seed import LATER, LISTS, new_address
from hud_benchmarks.autonomy.web.application import Goal, Kind
from hud_benchmarks.autonomy.web.people import PEOPLE
from hud_benchmarks.autonomy.web.rows import insert, update

if TYPE_CHECKING:
    from hud_benchmarks.autonomy.web.browser_actions import BrowserActions

Wanted = tuple[int, int]
"""Variant and quantity."""


# -- supplies -------------------------------------------------------------------------------------


def _supplies(db: sqlite3.Connection, random: Random) -> Goal:
    saved = db.execute(CART).fetchall()
    while True:
        requests, wanted = _requests(db, random)
        filled = _filled(db, wanted)
        coupon = _best_coupon(filled)
        if coupon is not None:
            break
    address = random.choice(db.execute("SELECT * FROM addresses ORDER BY id").fetchall())
    delivery, payment = random.choice(list(DELIVERIES)), random.choice(PAYMENTS)

    def apply(after: sqlite3.Connection) -> None:
        for line in saved:
            _save_for_later(after, line["variant_id"])
        for variant, quantity in wanted:
            add_to_cart(after, variant, quantity)
        place(after, address, delivery, payment, coupon)

    return Goal(
        f"Save everything that is in the cart for later. Then order {requests}, all in one order. Use the coupon of the "
        f"page Offers that takes the most off this order. Have it delivered to the address {address['name']} (delivery: "
        f"{delivery}), without a gift message, and pay with {payment}.",
        apply,
        {
            "saved": [f"{line['product']} {line['variant']}" for line in saved],
            "wanted": [_named(db, product) for product in wanted],
            "coupon": coupon["code"],
            "checkout": (address["name"], delivery, "", payment),
        },
    )


def _requests(db: sqlite3.Connection, random: Random) -> tuple[str, list[Wanted]]:
    """Draw three articles in stock that a sentence describes."""
    stocked = db.execute(f"{VARIANTS} WHERE v.stock > 0 ORDER BY v.id").fetchall()
    cheap, rated, named = random.sample(stocked, 3)
    of_a_kind = [
        row for row in stocked if (row["thing"], row["name"]) == (cheap["thing"], cheap["name"])
    ]
    cheapest = min(of_a_kind, key=lambda row: int(row["price"]))
    products = [row for row in stocked if row["thing"] == rated["thing"]]
    best = max(row["rating"] for row in products)
    favourite = random.choice([row for row in products if row["rating"] == best])
    chosen = [cheapest["id"], favourite["id"], named["id"]]
    if len({cheapest["thing"], favourite["thing"], named["thing"]}) < 3 or not _top(db, favourite):
        return _requests(db, random)
    counts = random.sample(range(1, 5), 3)
    text = (
        f"{counts[0]} of the cheapest {cheapest['thing']} in the variant '{cheapest['name']}' that is in stock, "
        f"{counts[1]} of the best rated {favourite['thing']} in the variant '{favourite['name']}', and {counts[2]} of "
        f"the {named['product']} in the variant '{named['name']}'"
    )
    return text, list(zip(chosen, counts, strict=True))


def _top(db: sqlite3.Connection, variant: sqlite3.Row) -> bool:
    """Tell whether a product has the best rating of all of its kind, also of those that are out of stock."""
    query = "SELECT max(rating) FROM products WHERE thing = ?"
    (best,) = db.execute(query, (variant["thing"],)).fetchone()
    return bool(variant["rating"] == best)


def _filled(db: sqlite3.Connection, wanted: list[Wanted]) -> sqlite3.Connection:
    """Return a copy of the database with these articles alone in the cart."""
    copy = sqlite3.connect(":memory:")
    db.backup(copy)
    copy.row_factory = sqlite3.Row
    copy.execute("DELETE FROM cart_lines")
    for variant, quantity in wanted:
        add_to_cart(copy, variant, quantity)
    return copy


def _best_coupon(db: sqlite3.Connection) -> sqlite3.Row | None:
    """Return the coupon that takes the most off the cart; None where two take the same."""
    lines = db.execute(CART).fetchall()
    coupons = db.execute("SELECT * FROM coupons").fetchall()
    first, second, *_ = sorted(coupons, key=lambda coupon: discount(lines, coupon), reverse=True)
    return first if discount(lines, first) > discount(lines, second) else None


async def _do_supplies(hands: BrowserActions, plan: Any) -> None:
    await hands.click("Cart")
    for article in plan["saved"]:
        await hands.click("Save for later", within=article)
    for product, variant, quantity in plan["wanted"]:
        await _open(hands, product)
        await hands.choose("Variant", variant)
        await hands.fill("Quantity", str(quantity))
        await hands.click("Add to cart")
    await hands.fill("Coupon code", plan["coupon"])
    await hands.click("Apply coupon")
    await _check_out(hands, *plan["checkout"])


# -- reorder --------------------------------------------------------------------------------------


def _reorder(db: sqlite3.Connection, random: Random) -> Goal:
    first, second = db.execute(CART).fetchall()
    # An article that is in the cart as well would make its quantity ambiguous.
    orders = db.execute(
        "SELECT * FROM orders o WHERE status = 'delivered' AND NOT EXISTS (SELECT 1 FROM order_lines l"
        " JOIN cart_lines c ON c.variant_id = l.variant_id WHERE l.order_id = o.id) ORDER BY id"
    ).fetchall()
    order = random.choice(orders)
    again = [
        (row["variant_id"], row["quantity"])
        for row in db.execute(f"{ORDER_LINES} WHERE l.order_id = ? ORDER BY l.id", (order["id"],))
    ]
    count = random.randrange(2, 6)
    friend = random.choice(PEOPLE[1:])
    address = {"name": friend.name.split()[0], "recipient": friend.name, **new_address(random)}
    message = f"{random.choice(['With love', 'Best wishes', 'Thank you'])}, Dana"
    payment = random.choice(PAYMENTS)

    def apply(after: sqlite3.Connection) -> None:
        after.execute("DELETE FROM cart_lines WHERE variant_id = ?", (first["variant_id"],))
        after.execute("UPDATE cart_lines SET quantity = ?", (count,))
        for variant, quantity in again:
            add_to_cart(after, variant, quantity)
        where = insert(after, "addresses", **address)
        row = after.execute("SELECT * FROM addresses WHERE id = ?", (where,)).fetchone()
        place(after, row, "express", payment, None, message)

    return Goal(
        f"{friend.name} liked what you ordered on {order['placed']}. Add an address named {address['name']}: {friend.name}, "
        f"{address['street']}, {address['postcode']} {address['city']}. Remove the article {first['product']} from the cart, "
        f"set the quantity of {second['product']} there to {count}, and add all that the order of {order['placed']} "
        f"contained, in the same quantities. Then order what is in the cart, to the new address, by express, with the gift "
        f"message '{message}', and pay with {payment}. Use no coupon.",
        apply,
        {
            "address": address,
            "removed": f"{first['product']} {first['variant']}",
            "changed": (f"{second['product']} {second['variant']}", count),
            "order": f"Order {order['id']}",
            "checkout": (address["name"], "express", message, payment),
        },
    )


async def _do_reorder(hands: BrowserActions, plan: Any) -> None:
    await hands.click("Addresses")
    await hands.click("New address")
    for label, value in plan["address"].items():
        await hands.fill(label.title(), value)
    await hands.click("Save address")
    await hands.click("Cart")
    await hands.click("Remove", within=plan["removed"])
    article, count = plan["changed"]
    await hands.fill("Quantity", str(count), within=article)
    await hands.click("Update", within=article)
    await hands.click("Orders")
    await hands.choose("Status", "delivered")
    await hands.click("Search")
    await hands.click(plan["order"])
    await hands.click("Order again")
    await _check_out(hands, *plan["checkout"])


# -- wishes ---------------------------------------------------------------------------------------


def _wishes(db: sqlite3.Connection, random: Random) -> Goal:
    name = random.choice([list_name for list_name in LISTS if list_name != LATER])
    items = db.execute(
        f"SELECT a.* FROM ({VARIANTS}) a JOIN list_items i ON i.variant_id = a.id JOIN lists l ON l.id = i.list_id"
        " WHERE l.name = ? ORDER BY a.product, a.id",
        (name,),
    ).fetchall()
    gone = [row for row in items if not row["stock"]]
    dear = [row for row in items if row["stock"] and row["price"] > 4000]
    cheap = [row for row in items if row["stock"] and row["price"] <= 4000]
    other = (
        f"{random.choice(['Expensive', 'Not now', 'To ask for'])} {random.randrange(2026, 2030)}"
    )
    new = f"{name} {random.choice(['basics', 'rest', 'small'])}"
    most = random.choice(cheap)
    count = random.randrange(2, 6)

    def apply(after: sqlite3.Connection) -> None:
        (place_of,) = after.execute("SELECT id FROM lists WHERE name = ?", (name,)).fetchone()
        after.execute("DELETE FROM list_items WHERE list_id = ?", (place_of,))
        update(after, "lists", place_of, name=new)
        target = insert(after, "lists", name=other)
        for row in dear:
            insert(after, "list_items", list_id=target, variant_id=row["id"])
        for row in cheap:
            add_to_cart(after, row["id"], 1)
        after.execute("UPDATE cart_lines SET quantity = ? WHERE variant_id = ?", (count, most["id"]))  # fmt: skip

    return Goal(
        f"Go through the list {name}. Create a list '{other}' and move the articles of {name} that are in stock and cost "
        f"more than 40.00 EUR there. Remove those that are out of stock, whatever they cost. Move all others to the cart, "
        f"and set the quantity of the {most['product']} ({most['name']}) there to {count}. Rename the list {name}, which is "
        f"then empty, to '{new}'. Order nothing.",
        apply,
        {
            "list": name,
            "other": other,
            "new": new,
            "count": count,
            "most": f"{most['product']} {most['name']}",
            **{
                part: [f"{row['product']}, {row['name']}" for row in rows]
                for part, rows in (("gone", gone), ("dear", dear), ("cheap", cheap))
            },
        },
    )


async def _do_wishes(hands: BrowserActions, plan: Any) -> None:
    await hands.click("Lists")
    await hands.fill("New list", plan["other"])
    await hands.click("Create list")
    await hands.click(plan["list"])
    for article in plan["gone"]:
        await hands.click("Remove", within=article)
    for article in plan["dear"]:
        await hands.choose("To list", plan["other"], within=article)
        await hands.click("Move", within=article)
    for article in plan["cheap"]:
        await hands.click("To cart", within=article)
    await hands.fill("Name", plan["new"])
    await hands.click("Rename list")
    await hands.click("Cart")
    await hands.fill("Quantity", str(plan["count"]), within=plan["most"])
    await hands.click("Update", within=plan["most"])


def _named(db: sqlite3.Connection, wanted: Wanted) -> tuple[str, str, int]:
    """Return the names of product and variant, and the quantity."""
    row = db.execute(f"{VARIANTS} WHERE v.id = ?", (wanted[0],)).fetchone()
    return row["product"], row["name"], wanted[1]


def _save_for_later(db: sqlite3.Connection, variant: int) -> None:
    (place_of,) = db.execute("SELECT id FROM lists WHERE name = ?", (LATER,)).fetchone()
    db.execute("INSERT INTO list_items VALUES (?, ?)", (place_of, variant))
    db.execute("DELETE FROM cart_lines WHERE variant_id = ?", (variant,))


async def _open(hands: BrowserActions, product: str) -> None:
    """Open the page of a product by its name."""
    await hands.click("Shop")
    await hands.fill("Text", product)
    await hands.click("Search")
    await hands.click(product)


async def _check_out(
    hands: BrowserActions, address: str, delivery: str, message: str, payment: str
) -> None:
    """Order what is in the cart, from the page of the cart."""
    await hands.click("Checkout")
    await hands.click(address)
    await hands.click("Continue")
    await hands.click(delivery)
    if message:
        await hands.fill("Gift message", message)
    await hands.click("Continue")
    await hands.click(payment)
    await hands.click("Continue")
    await hands.click("I have checked the order")
    await hands.click("Place order")


KINDS = (
    Kind("supplies", _supplies, _do_supplies),
    Kind("reorder", _reorder, _do_reorder),
    Kind("wishes", _wishes, _do_wishes),
)
