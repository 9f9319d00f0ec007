"""The storefront: what customers' browsers talk to."""

from typing import Any

from .frame import Frame

frame = Frame("storefront")
app = frame.app


PAGE = b"<li>" * 200_000


def banner(campaign: str) -> bytes:
    return PAGE + campaign.encode()


@app.get("/browse/{category}")
def browse(category: str, campaign: str = "") -> dict[str, Any]:
    shown = frame.memo("campaign_pages", campaign, lambda: banner(campaign))
    return {"products": frame.call("catalog", f"/categories/{category}"), "banner": len(shown)}


@app.get("/product/{product}")
def product(product: str, currency: str = "EUR") -> Any:
    if not product.isdigit():
        raise ValueError(f"not a product number: {product!r}")
    return frame.call("catalog", f"/products/{product}?currency={currency}")


@app.get("/neighbours/{region}")
def neighbours(region: str, viewer: str = "guest") -> dict[str, Any]:
    return {"orders": frame.call("orders", f"/regions/{region}/latest?viewer={viewer}")}


@app.get("/receipts")
def receipts(orders: str) -> dict[str, Any]:
    return {"receipts": frame.call("payments", f"/receipts?orders={orders}")}


@app.get("/account/{customer}/deliveries")
def deliveries(customer: int) -> dict[str, Any]:
    return {"deliveries": frame.call("orders", f"/customers/{customer}/deliveries")}


@app.post("/checkout")
def checkout(basket: dict[str, Any]) -> dict[str, Any]:
    order = frame.call("orders", "/orders", basket)
    return {"order": order["id"], "status": order["status"]}


if __name__ == "__main__":
    frame.serve()
