"""The bank: the partner that payments depend on. Speaks TLS."""

import time
import uuid
from typing import Any

from fastapi import HTTPException

from .frame import Frame

frame = Frame("bank")
app = frame.app


@app.post("/charges")
def charge(request: dict[str, Any]) -> dict[str, Any]:
    if request["amount_cents"] <= 0:
        raise HTTPException(400, f"amount_cents must be positive, not {request['amount_cents']}")
    return {"reference": f"ref-{uuid.uuid4().hex[:12]}"}


@app.get("/statement")
def statement() -> dict[str, Any]:
    time.sleep(3)  # The bank's batch interface has always been slow.
    return {"balance": 1_000_000}


@app.get("/rates/{product}")
def rates(product: int) -> dict[str, Any]:
    time.sleep(0.2)
    return {"product": product, "rate": 1.0}


if __name__ == "__main__":
    frame.serve()
