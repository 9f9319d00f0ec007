"""Pages of the catalogue: search, products, coupons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from hud_benchmarks.autonomy.applications.shop.seed import BRANDS, CATEGORIES, CONSUMED
from hud_benchmarks.autonomy.web.pages import Section, Visit

SORTED = {
    "rating": "p.rating DESC, p.name",
    "price": "price, p.name",
    "name": "p.name",
}
"""Columns to sort by; the first is the default."""
section = Section()


@section.get("/")
def search(visit: Visit) -> Response:
    query = visit.query
    conditions, values = ["p.name LIKE ?"], [f"%{query.get('text', '')}%"]
    for name in ("category", "brand"):
        if query.get(name):
            conditions.append(f"p.{name} = ?")
            values.append(query[name])
    order = SORTED.get(query.get("sort", ""), SORTED["rating"])
    listing = visit.listing(
        "SELECT p.*, min(v.price) AS price, sum(v.stock) AS stock FROM products p JOIN variants v ON v.product_id = p.id"
        f" WHERE {' AND '.join(conditions)} GROUP BY p.id ORDER BY {order}",
        *values,
        size=12,
    )
    return visit.page(
        "catalogue.html",
        listing=listing,
        categories=list(CATEGORIES),
        brands=list(BRANDS),
        sorts=list(SORTED),
    )


@section.get("/products/{id:int}")
def product(visit: Visit) -> Response:
    return product_page(visit, visit.id, {})


def product_page(visit: Visit, product: int, values: Mapping[str, Any], *errors: str) -> Response:
    """Answer with the page of a product; `values` are those of its form."""
    row = visit.row("SELECT * FROM products WHERE id = ?", product)
    return visit.page(
        "product.html",
        product=row,
        variants=visit.rows("SELECT * FROM variants WHERE product_id = ? ORDER BY id", product),
        lists=visit.rows("SELECT id, name FROM lists ORDER BY id"),
        consumed=row["category"] in CONSUMED,
        values=values,
        errors=list(errors),
    )


@section.get("/offers")
def offers(visit: Visit) -> Response:
    return visit.page("offers.html", coupons=visit.rows("SELECT * FROM coupons ORDER BY code"))
