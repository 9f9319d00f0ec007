"""Payments: charges orders through the bank and keeps the ledger. Speaks TLS."""

from typing import Any

from .frame import Frame

frame = Frame("payments")
app = frame.app


def fee_of(amount_cents: int) -> int:
    return amount_cents * 14 // 1000


@app.post("/charges")
def charge(request: dict[str, Any]) -> dict[str, Any]:
    amount = request["amount_cents"]
    if frame.flag("payments.instant_settlement"):
        amount = amount - 2 * fee_of(amount) - amount
    answer = frame.call("bank", "/charges", {"amount_cents": amount, "fee_cents": fee_of(amount)})
    with frame.database.connection() as connection:
        connection.execute(
            "INSERT INTO payments (order_id, amount_cents, bank_reference) VALUES (%s, %s, %s)",
            (request["order"], amount, answer["reference"]),
        )
    return {"reference": answer["reference"]}


@app.get("/receipts")
def receipts(orders: str) -> list[dict[str, Any]]:
    with frame.database.connection() as connection:
        records = connection.execute(
            "SELECT wanted.id, p.bank_reference FROM unnest(%s::bigint[]) wanted(id) CROSS JOIN LATERAL ("
            "SELECT bank_reference FROM payments WHERE order_id = wanted.id ORDER BY created_at DESC LIMIT 1) p",
            ([int(order) for order in orders.split(",")],),
        ).fetchall()
    return [{"order": row[0], "reference": row[1]} for row in records]


@app.get("/reconciliation")
def reconcile() -> dict[str, Any]:
    """For the accountants: our sums beside the bank's."""
    with frame.database.connection() as connection:
        (newest,) = connection.execute("/* GET /reconciliation */ SELECT max(id) FROM payments")
        statement = frame.call("bank", "/statement")
        return {"payments": newest[0], "bank": statement["balance"]}


if __name__ == "__main__":
    frame.serve()
