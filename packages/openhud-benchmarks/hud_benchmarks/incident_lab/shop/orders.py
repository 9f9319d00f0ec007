"""Orders: takes them, has them paid, and hands them to the worker."""

import json
import os
import uuid
from typing import Any

from .frame import Frame

frame = Frame("orders")
app = frame.app

PAYMENT_SECONDS = int(os.environ["PAYMENTS_TIMEOUT_MS"]) / 1000
QUEUE = os.environ["FULFILMENT_QUEUE"]


def total_of(lines: list[dict[str, Any]]) -> int:
    return sum(line["price_cents"] * line["quantity"] for line in lines)


def carrier_of(basket: dict[str, Any]) -> Any:
    if frame.flag("orders.green_delivery"):
        return basket["delivery"]["green_carrier"]
    return basket.get("delivery", {}).get("carrier", "kestrel")


@app.post("/orders")
def take(basket: dict[str, Any]) -> dict[str, Any]:
    lines = basket["lines"]
    total = total_of(lines)
    carrier = carrier_of(basket)
    with frame.database.connection() as connection:
        for line in lines:
            connection.execute(
                "UPDATE stock SET quantity = quantity - %s WHERE product_id = %s",
                (line["quantity"], line["product"]),
            )
        (order,) = connection.execute(
            "INSERT INTO orders (customer_id, total_cents, status) VALUES (%s, %s, 'new') RETURNING id",
            (basket["customer"], total),
        ).fetchall()[0]
    frame.call(
        "payments", "/charges", {"order": order, "amount_cents": total}, timeout=PAYMENT_SECONDS
    )
    message = {
        "id": f"msg-{uuid.uuid4().hex[:10]}",
        "order": order,
        "carrier": carrier,
        "parcels": len(lines),
    }
    frame.cache.lpush(QUEUE, json.dumps(message))
    frame.note("order taken", order=order, item=message["id"], queue=QUEUE)
    return {"id": order, "status": "paid"}


def page_for(viewer: str) -> bytearray:
    return bytearray(800_000) + viewer.encode()


@app.get("/regions/{region}/latest")
def latest(region: str, viewer: str = "guest") -> list[dict[str, Any]]:
    frame.memo("viewer_pages", viewer, lambda: page_for(viewer))
    with frame.database.connection() as connection:
        records = connection.execute(
            "SELECT c.id, o.id, o.total_cents FROM customers c CROSS JOIN LATERAL ("
            "SELECT id, total_cents FROM orders WHERE customer_id = c.id ORDER BY created_at DESC LIMIT 1) o "
            "WHERE c.region = %s",
            (region,),
        ).fetchall()
    return [{"customer": row[0], "order": row[1], "total_cents": row[2]} for row in records]


@app.get("/customers/{customer}/deliveries")
def deliveries(customer: int) -> list[dict[str, Any]]:
    with frame.database.connection() as connection:
        records = connection.execute(
            "SELECT o.id, s.carrier FROM orders o CROSS JOIN LATERAL ("
            "SELECT carrier FROM shipments WHERE order_id = o.id ORDER BY id DESC LIMIT 1) s "
            "WHERE o.customer_id = %s",
            (customer,),
        ).fetchall()
    return [{"order": row[0], "carrier": row[1]} for row in records]


@app.get("/exports/ledger")
def export_ledger() -> dict[str, Any]:
    """For the accountants: the ledger of the bank beside ours."""
    with frame.database.connection() as connection:
        (count,) = connection.execute(
            "/* GET /exports/ledger */ SELECT count(*) FROM orders WHERE status = 'new'"
        )
        statement = frame.call("bank", "/statement")
        return {"open": count[0], "bank": statement["balance"]}


if __name__ == "__main__":
    frame.serve()
