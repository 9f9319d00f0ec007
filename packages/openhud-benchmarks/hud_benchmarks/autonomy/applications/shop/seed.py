"""A shop for the home: a catalogue of five categories, and a customer with orders, lists, subscriptions and a cart."""

from __future__ import annotations

import sqlite3
from datetime import timedelta
from random import Random

from hud_benchmarks.autonomy.applications.shop.ordering import PAYMENTS, add_to_cart, place
from hud_benchmarks.autonomy.web.application import TODAY
from hud_benchmarks.autonomy.web.people import AGENT, insert_people
from hud_benchmarks.autonomy.web.rows import insert, update

BRANDS = ("Norrland", "Calder", "Mirabel", "Ostrava", "Pellworm")
WEIGHTS, COLOURS, SIZES = ("250 g", "500 g", "1 kg"), ("black", "white", "brass"), ("small", "medium", "large")  # fmt: skip
FABRICS = ("grey", "navy", "ochre")
CATEGORIES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "Coffee": (("espresso beans", "filter coffee", "decaf beans", "house blend"), WEIGHTS),
    "Tea": (("green tea", "black tea", "herbal tea", "white tea"), WEIGHTS),
    "Lighting": (("desk lamp", "floor lamp", "wall lamp", "reading lamp"), COLOURS),
    "Kitchen": (("frying pan", "saucepan", "mixing bowl", "baking dish"), SIZES),
    "Textiles": (("wool blanket", "linen towel", "cotton pillow", "bath mat"), FABRICS),
}
"""Things and variants of each category."""
CONSUMED = ("Coffee", "Tea")
"""Categories of which there are subscriptions."""
LATER = "Saved for later"
LISTS = (LATER, "Wedding", "New flat")
SUBSCRIPTIONS = 6
ORDERS = 14
_BRANDS_EACH = 3
_SUMMARIES = {
    "Coffee": "Roasted in small batches and packed on the same day.",
    "Tea": "Loose leaves of the first harvest.",
    "Lighting": "Warm light, a dimmer, and a cable of two metres.",
    "Kitchen": "For all stoves and for the dishwasher.",
    "Textiles": "Woven from natural fibres, washable at 40 degrees.",
}
_STREETS = ("Canal Street", "Mill Lane", "Harbour Road", "Station Square", "Orchard Way")
CITIES = ("Bremen", "Ghent", "Aarhus", "Turin", "Lyon", "Porto")


def seed(db: sqlite3.Connection, random: Random) -> None:
    """Fill an empty database."""
    insert_people(db, random, 1)
    _insert_catalogue(db, random)
    _insert_coupons(db, random)
    addresses = _insert_addresses(db, random)
    in_stock = _ids(db, "v.stock > 0")
    _insert_orders(db, random, addresses, in_stock)
    _insert_lists(db, random)
    _insert_subscriptions(db, random, addresses)
    for variant in random.sample(in_stock, 2):
        add_to_cart(db, variant, 1)


def new_address(random: Random) -> dict[str, str]:
    """Draw street, postcode and city of an address."""
    return {
        "street": f"{random.choice(_STREETS)} {random.randrange(1, 120)}",
        "postcode": str(random.randrange(10_000, 99_999)),
        "city": random.choice(CITIES),
    }


def _insert_catalogue(db: sqlite3.Connection, random: Random) -> None:
    offers = [
        (category, thing, brand, rating, price)
        for category, (things, _) in CATEGORIES.items()
        for thing in things
        for brand, rating, price in zip(
            random.sample(BRANDS, _BRANDS_EACH),
            random.sample(range(31, 50), _BRANDS_EACH),
            random.sample(range(39, 190), _BRANDS_EACH),
            strict=True,
        )
    ]
    random.shuffle(offers)
    for category, thing, brand, rating, price in offers:
        product = insert(
            db, "products", name=f"{brand} {thing}", thing=thing, brand=brand, category=category,
            rating=rating / 10, summary=_SUMMARIES[category],
        )  # fmt: skip
        names = CATEGORIES[category][1]
        # Larger weights and sizes cost more; colours do not. Distinct prices stay distinct.
        factors = (10, 18, 33) if names in (WEIGHTS, SIZES) else (10, 10, 10)
        scale = 1 if category in CONSUMED else 3
        for name, factor in zip(names, factors, strict=True):
            stock = random.choice([0, *[random.randrange(6, 40)] * 4])
            insert(db, "variants", product_id=product, name=name, price=price * factor * scale, stock=stock)  # fmt: skip


def _insert_coupons(db: sqlite3.Connection, random: Random) -> None:
    over = (TODAY - timedelta(days=random.randrange(2, 20))).isoformat()
    valid = (TODAY + timedelta(days=random.randrange(10, 60))).isoformat()
    first, second = random.sample(sorted(CATEGORIES), 2)
    insert(db, "coupons", code="WINTER25", percent=25, until=over)
    insert(db, "coupons", code="SPRING5", percent=5, until=valid)
    insert(db, "coupons", code="BIG12", percent=12, minimum=15_000, until=valid)
    for category, percent in ((first, 20), (second, 30)):
        code = f"{category.upper()}{percent}"
        insert(db, "coupons", code=code, percent=percent, category=category, until=valid)


def _insert_addresses(db: sqlite3.Connection, random: Random) -> list[int]:
    """Return the ids of the address at home and the one at work."""
    return [
        insert(
            db, "addresses", name=name, recipient=AGENT.name, preferred=name == "Home", **new_address(random)
        )
        for name in ("Home", "Office")
    ]  # fmt: skip


def _insert_orders(
    db: sqlite3.Connection, random: Random, addresses: list[int], variants: list[int]
) -> None:
    for back in range(ORDERS, 0, -1):
        for variant in random.sample(variants, random.randint(2, 3)):
            add_to_cart(db, variant, random.randint(1, 3))
        # The open orders go to the first address: there are always some to redirect.
        where = addresses[0] if back <= 2 else random.choice(addresses)
        address = db.execute("SELECT * FROM addresses WHERE id = ?", (where,)).fetchone()
        delivery = random.choice(["standard", "standard", "express"])
        order = place(db, address, delivery, random.choice(PAYMENTS), None)
        status = "open" if back <= 3 else "shipped" if back == 4 else "delivered"
        day = TODAY - timedelta(days=back * 9 - random.randrange(6) - 3)
        update(db, "orders", order, placed=day.isoformat(), status=status)


def _insert_lists(db: sqlite3.Connection, random: Random) -> None:
    dear, cheap = _ids(db, "v.stock > 0 AND v.price > 4000"), _ids(db, "v.stock > 0 AND v.price <= 4000")  # fmt: skip
    gone = _ids(db, "v.stock = 0")
    for name in LISTS:
        place_of = insert(db, "lists", name=name)
        items = [] if name == LATER else [*random.sample(dear, 3), *random.sample(cheap, 3), *random.sample(gone, 2)]  # fmt: skip
        random.shuffle(items)
        for variant in items:
            insert(db, "list_items", list_id=place_of, variant_id=variant)


def _insert_subscriptions(db: sqlite3.Connection, random: Random, addresses: list[int]) -> None:
    coffee = random.choice([2, 3, 4])
    variants = [
        variant
        for category, count in zip(CONSUMED, (coffee, SUBSCRIPTIONS - coffee), strict=True)
        for variant in random.sample(_ids(db, f"p.category = '{category}'"), count)
    ]
    random.shuffle(variants)
    for position, variant in enumerate(variants):
        insert(
            db,
            "subscriptions",
            variant_id=variant,
            quantity=random.randint(1, 3),
            weeks=random.choice([2, 4, 8]),
            next_delivery=(TODAY + timedelta(days=random.randrange(3, 40))).isoformat(),
            address_id=addresses[position % 3 > 0],
            status="active",
        )


def _ids(db: sqlite3.Connection, condition: str) -> list[int]:
    query = "SELECT v.id FROM variants v JOIN products p ON p.id = v.product_id"
    return [row["id"] for row in db.execute(f"{query} WHERE {condition} ORDER BY v.id")]
