"""Pages of the shop."""

from pathlib import Path

from hud_benchmarks.autonomy.applications.shop.pages import (
    addresses,
    cart,
    catalogue,
    checkout,
    lists,
    orders,
    returns,
    subscriptions,
)
from hud_benchmarks.autonomy.web.pages import Pages

pages = Pages(
    "Fennel & Oak",
    Path(__file__).parents[1],
    catalogue.section,
    cart.section,
    checkout.section,
    orders.section,
    returns.section,
    lists.section,
    subscriptions.section,
    addresses.section,
    navigation={
        "Shop": "/",
        "Offers": "/offers",
        "Cart": "/cart",
        "Orders": "/orders",
        "Returns": "/returns",
        "Lists": "/lists",
        "Subscriptions": "/subscriptions",
        "Addresses": "/addresses",
    },
)
pages.templates.filters["euros"] = lambda cents: f"{cents / 100:,.2f} EUR"
