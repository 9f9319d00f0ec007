"""Kinds of tasks after an order: a recall, another home, subscriptions."""

from __future__ import annotations

import sqlite3
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING, Any

from hud_benchmarks.autonomy.applications.shop.ordering import ORDER_LINES, VARIANTS
from hud_benchmarks.autonomy.applications.shop.seed import BRANDS, CONSUMED, new_address
from hud_benchmarks.autonomy.web.application import TODAY, Goal, Kind
from hud_benchmarks.autonomy.web.people import AGENT
from hud_benchmarks.autonomy.web.rows import insert, update

if TYPE_CHECKING:
    from hud_benchmarks.autonomy.web.browser_actions import BrowserActions


# -- recall ---------------------------------------------------------------------------------------


def _recall(db: sqlite3.Connection, random: Random) -> Goal:
    lines = db.execute(
        f"SELECT l.*, o.status, o.placed FROM ({ORDER_LINES}) l JOIN orders o ON o.id = l.order_id ORDER BY l.id"
    ).fetchall()
    affected = {
        brand: {
            status: sorted({row["order_id"] for row in lines if (row["brand"], row["status"]) == (brand, status)})
            for status in ("delivered", "open")
        }
        for brand in BRANDS
    }  # fmt: skip
    brands = [brand for brand, of in affected.items() if len(of["delivered"]) > 1 and of["open"]]
    brands.sort(key=lambda brand: len(affected[brand]["open"]))
    brand = random.choice(brands[:2])
    cancelled = affected[brand]["open"]
    sent_back = affected[brand]["delivered"][-2:]
    since = next(row["placed"] for row in lines if row["order_id"] == sent_back[0])
    returned = {
        order: [row for row in lines if row["order_id"] == order and row["brand"] == brand]
        for order in sent_back
    }
    refund = random.choice(["original payment", "store credit"])

    def apply(after: sqlite3.Connection) -> None:
        for order, articles in returned.items():
            request = insert(
                after, "returns", order_id=order, reason="recalled", refund=refund, requested=TODAY.isoformat()
            )  # fmt: skip
            for row in articles:
                insert(after, "return_lines", return_id=request, line_id=row["id"])
        for order in cancelled:
            update(after, "orders", order, status="cancelled", cancellation="recalled")

    return Goal(
        f"The brand {brand} recalls all articles that were ordered on {since} or later. Request a return of each article "
        f"of {brand} in the orders since then that are delivered: one return for each of these orders, with the reason "
        f"recalled and the refund {refund}. Cancel the open orders that contain an article of {brand}, with the reason "
        "recalled. Orders that are shipped stay as they are.",
        apply,
        {
            "brand": brand,
            "refund": refund,
            "cancelled": cancelled,
            "returned": {
                order: [f"{row['quantity']} × {row['product']}, {row['variant']}" for row in articles]
                for order, articles in returned.items()
            },
        },
    )  # fmt: skip


async def _do_recall(hands: BrowserActions, plan: Any) -> None:
    for order, articles in plan["returned"].items():
        await _open_order(hands, order, plan["brand"])
        await hands.click("Return articles")
        for article in articles:
            await hands.click(article)
        await hands.click("Continue")
        await hands.choose("Reason", "recalled")
        await hands.choose("Refund", plan["refund"])
        await hands.click("Continue")
        await hands.click("Request return")
    for order in plan["cancelled"]:
        await hands.click("Orders")
        await hands.click(f"Order {order}")
        await hands.click("Cancel order")
        await hands.choose("Reason", "recalled")
        await hands.click("Cancel this order")


async def _open_order(hands: BrowserActions, order: int, article: str) -> None:
    await hands.click("Orders")
    await hands.fill("Article", article)
    await hands.click("Search")
    await hands.click(f"Order {order}")


# -- moving ---------------------------------------------------------------------------------------


def _moving(db: sqlite3.Connection, random: Random) -> Goal:
    old = db.execute("SELECT * FROM addresses WHERE name = 'Home'").fetchone()
    name = random.choice(["New home", "Flat", "House"])
    address = {"name": name, "recipient": AGENT.name, **new_address(random)}
    orders = [
        row["id"]
        for row in db.execute(
            "SELECT id FROM orders WHERE status = 'open' AND street = ? ORDER BY id", (old["street"],)
        )
    ]  # fmt: skip
    subscriptions = db.execute(
        f"SELECT s.id, v.product, v.name FROM subscriptions s JOIN ({VARIANTS}) v ON v.id = s.variant_id"
        " WHERE s.address_id = ? ORDER BY s.id",
        (old["id"],),
    ).fetchall()

    def apply(after: sqlite3.Connection) -> None:
        new = insert(after, "addresses", **address)
        after.execute("UPDATE addresses SET preferred = (id = ?)", (new,))
        where = {name: value for name, value in address.items() if name != "name"}
        for order in orders:
            update(after, "orders", order, **where)
        for row in subscriptions:
            update(after, "subscriptions", row["id"], address_id=new)
        after.execute("DELETE FROM addresses WHERE id = ?", (old["id"],))

    return Goal(
        f"You move. Add an address named {name}: {AGENT.name}, {address['street']}, {address['postcode']} "
        f"{address['city']}, and make it the preferred one. Change the address of the open orders that go to the address "
        "Home, and of the subscriptions that go there, to the new one; what goes to the office stays. Then delete the "
        "address Home.",
        apply,
        (address, orders, [f"{row['product']}, {row['name']}" for row in subscriptions]),
    )


async def _do_moving(hands: BrowserActions, plan: Any) -> None:
    address, orders, subscriptions = plan
    await hands.click("Addresses")
    await hands.click("New address")
    for label, value in address.items():
        await hands.fill(label.title(), value)
    await hands.click("Save address")
    await hands.click("Prefer", within=address["street"])
    for order in orders:
        await hands.click("Orders")
        await hands.click(f"Order {order}")
        await hands.click("Change address")
        await hands.choose("New address", address["name"])
        await hands.click("Save address")
    for article in subscriptions:
        await hands.click("Subscriptions")
        await hands.click(article)
        await hands.choose("Address", address["name"])
        await hands.click("Save subscription")
    await hands.click("Addresses")
    await hands.click("Delete", within="Home")
    await hands.click("Delete this address")


# -- subscriptions --------------------------------------------------------------------------------


def _subscriptions(db: sqlite3.Connection, random: Random) -> Goal:
    rows = db.execute(
        f"SELECT s.*, v.product, v.name, v.category FROM subscriptions s JOIN ({VARIANTS}) v ON v.id = s.variant_id"
        " ORDER BY s.id"
    ).fetchall()
    counts = {name: sum(row["category"] == name for row in rows) for name in CONSUMED}
    paused, other = sorted(CONSUMED, key=lambda name: (counts[name], name))
    pausing = [row for row in rows if row["category"] == paused]
    rest = [row for row in rows if row["category"] == other]
    cancelled, changed = random.sample(rest, 2)
    weeks = random.choice([weeks for weeks in (2, 4, 8) if weeks != changed["weeks"]])
    count = changed["quantity"] + random.randrange(1, 4)
    taken = [row["variant_id"] for row in rows]
    new = random.choice(
        [
            row
            for row in db.execute(f"{VARIANTS} WHERE p.category = ? ORDER BY v.id", (other,))
            if row["id"] not in taken
        ]
    )
    day = (TODAY + timedelta(days=random.randrange(3, 25))).isoformat()
    address = db.execute("SELECT * FROM addresses WHERE name = 'Office'").fetchone()

    def apply(after: sqlite3.Connection) -> None:
        for row in pausing:
            update(after, "subscriptions", row["id"], status="paused")
        update(after, "subscriptions", cancelled["id"], status="cancelled")
        update(after, "subscriptions", changed["id"], weeks=weeks, quantity=count)
        insert(
            after, "subscriptions", variant_id=new["id"], quantity=2, weeks=4, next_delivery=day,
            address_id=address["id"], status="active",
        )  # fmt: skip

    return Goal(
        f"Pause all subscriptions of the category {paused}. Cancel the subscription of {cancelled['product']} "
        f"({cancelled['name']}). Let {changed['product']} ({changed['name']}) come every {weeks} weeks, {count} pieces each "
        f"time. Then begin a subscription of {new['product']} in the variant '{new['name']}': 2 pieces every 4 weeks, next "
        f"delivery on {day}, to the address Office.",
        apply,
        {
            "paused": [_article(row) for row in pausing],
            "cancelled": _article(cancelled),
            "changed": (_article(changed), f"{weeks} weeks", str(count)),
            "new": (new["product"], new["name"], day),
        },
    )


async def _do_subscriptions(hands: BrowserActions, plan: Any) -> None:
    for article in plan["paused"]:
        await hands.click("Subscriptions")
        await hands.click(article)
        await hands.click("Pause")
    await hands.click("Subscriptions")
    await hands.click(plan["cancelled"])
    await hands.click("Cancel subscription")
    await hands.click("Cancel this subscription")
    article, weeks, count = plan["changed"]
    await hands.click(article)
    await hands.fill("Quantity", count)
    await hands.choose("Every", weeks)
    await hands.click("Save subscription")
    product, variant, day = plan["new"]
    await hands.click("Shop")
    await hands.fill("Text", product)
    await hands.click("Search")
    await hands.click(product)
    await hands.choose("Variant", variant)
    await hands.fill("Quantity", "2")
    await hands.click("Subscribe")
    await hands.choose("Every", "4 weeks")
    await hands.fill("Next delivery", day)
    await hands.choose("Address", "Office")
    await hands.click("Begin subscription")


def _article(row: sqlite3.Row) -> str:
    return f"{row['product']}, {row['name']}"


KINDS = (
    Kind("recall", _recall, _do_recall),
    Kind("moving", _moving, _do_moving),
    Kind("subscriptions", _subscriptions, _do_subscriptions),
)
