"""The storefront: what customers' browsers talk to."""

from shop.frame import Frame

frame = Frame("storefront")
app = frame.app


PAGE = b"<li>" * 200_000


def banner(campaign):
    return PAGE + campaign.encode()


@app.get("/browse/{category}")
def browse(category: str, campaign: str = ""):
    shown = frame.memo("campaign_pages", campaign, lambda: banner(campaign))
    return {"products": frame.call("catalog", f"/categories/{category}"), "banner": len(shown)}


@app.get("/product/{product}")
def product(product: str, currency: str = "EUR"):
    if not product.isdigit():
        raise ValueError(f"not a product number: {product!r}")
    return frame.call("catalog", f"/products/{product}?currency={currency}")


@app.get("/neighbours/{region}")
def neighbours(region: str, viewer: str = "guest"):
    return {"orders": frame.call("orders", f"/regions/{region}/latest?viewer={viewer}")}


@app.get("/receipts")
def receipts(orders: str):
    return {"receipts": frame.call("payments", f"/receipts?orders={orders}")}


@app.get("/account/{customer}/deliveries")
def deliveries(customer: int):
    return {"deliveries": frame.call("orders", f"/customers/{customer}/deliveries")}


@app.post("/checkout")
def checkout(basket: dict):
    order = frame.call("orders", "/orders", basket)
    return {"order": order["id"], "status": order["status"]}


if __name__ == "__main__":
    frame.serve()
