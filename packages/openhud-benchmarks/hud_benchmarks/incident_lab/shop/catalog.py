"""The catalogue: products and their prices, cached."""

import json
from typing import Any

from .frame import Frame

frame = Frame("catalog")
app = frame.app


def price_of(row: dict[str, Any]) -> int:
    price: int = row["price_cents"]
    if row["discount_percent"]:
        price -= price * row["discount_percent"] // 100
    if frame.flag("catalog.member_prices"):
        price -= row["member_discount_cents"]
    return price


def describe(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["id"], "name": row["name"], "price_cents": price_of(row)}


def rows(query: str, values: tuple[Any, ...]) -> list[dict[str, Any]]:
    with frame.database.connection() as connection:
        cursor = connection.execute(query, values)
        names = [column.name for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor]


def price_list(currency: str) -> list[str]:
    return [f"{currency} {cents / 100:.2f}" for cents in range(12_000)]


@app.get("/products/{product}")
def product(product: int, currency: str = "EUR") -> Any:
    frame.memo("price_lists", currency, lambda: price_list(currency))
    key = f"product:{product}"
    cached = frame.cache.get(key)
    if cached is not None:
        return json.loads(cached)
    matches = rows("SELECT * FROM products WHERE id = %s", (product,))
    described = describe(matches[0])
    frame.cache.set(key, json.dumps(described), ex=2)
    return described


@app.get("/categories/{category}")
def category(category: str) -> list[dict[str, Any]]:
    matches = rows("SELECT * FROM products WHERE category = %s ORDER BY id LIMIT 20", (category,))
    return [describe(row) for row in matches]


@app.get("/audit/prices")
def audit_prices() -> dict[str, Any]:
    """For the accountants: walks through all products in one transaction."""
    checked = 0
    with frame.database.connection() as connection:
        for (product,) in connection.execute("SELECT id FROM products ORDER BY id LIMIT 40"):
            connection.execute(
                "/* GET /audit/prices */ SELECT price_cents FROM products WHERE id = %s", (product,)
            )
            frame.call("bank", f"/rates/{product}")
            checked += 1
    return {"checked": checked}


if __name__ == "__main__":
    frame.serve()
