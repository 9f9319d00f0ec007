"""The shop's customers: requests to the storefront at a steady rate, and what became of each."""

from __future__ import annotations

import asyncio
import random
from time import perf_counter

import httpx

from hud_benchmarks.incident_lab.lab.recording import Recording, clock

RATE = 9.0
"""Requests a second."""
CATEGORIES = ("tea", "coffee", "cocoa", "spices")
CAMPAIGNS = ("", "spring", "letter-12", "partner-a")
CURRENCIES = ("EUR", "GBP", "CHF")


def request(luck: random.Random) -> tuple[str, str, str, dict[str, object] | None]:
    """Return a customer's request: its route, method, path and body."""
    route = luck.choices(
        ("checkout", "product", "browse", "neighbours", "deliveries", "receipts"),
        (30, 22, 16, 11, 11, 10),
    )[0]
    match route:
        case "checkout":
            lines = [
                {
                    "product": luck.randint(1, 400),
                    "quantity": luck.randint(1, 3),
                    "price_cents": luck.randint(300, 4000),
                }
                for _ in range(luck.randint(1, 3))
            ]
            basket: dict[str, object] = {"customer": luck.randint(1, 1000), "lines": lines}
            if luck.random() < 0.5:
                basket["delivery"] = {"carrier": luck.choice(("kestrel", "heron", "swift"))}
            return "POST /checkout", "POST", "/checkout", basket
        case "product":
            # A robot that follows a broken link: noise that every error tracker is full of.
            wanted = "undefined" if luck.random() < 0.06 else str(luck.randint(1, 400))
            currency = luck.choice(CURRENCIES)
            return "GET /product", "GET", f"/product/{wanted}?currency={currency}", None
        case "browse":
            campaign = luck.choice(CAMPAIGNS)
            path = f"/browse/{luck.choice(CATEGORIES)}?campaign={campaign}"
            return "GET /browse", "GET", path, None
        case "neighbours":
            path = f"/neighbours/region-{luck.randint(0, 19)}?viewer=guest"
            return "GET /neighbours", "GET", path, None
        case "deliveries":
            path = f"/account/{luck.randint(1, 1000)}/deliveries"
            return "GET /account/deliveries", "GET", path, None
        case _:
            orders = ",".join(str(luck.randint(1, 160_000)) for _ in range(150))
            return "GET /receipts", "GET", f"/receipts?orders={orders}", None


class Traffic:
    """Sends requests until cancelled, and records how each ended, as a probe at the edge would."""

    def __init__(self, storefront: str, recording: Recording, luck: random.Random) -> None:
        self.storefront = storefront
        self.recording = recording
        self.luck = luck

    async def run(self) -> None:
        """Send requests."""
        limits = httpx.Limits(max_connections=80, max_keepalive_connections=0)
        async with (
            httpx.AsyncClient(base_url=self.storefront, timeout=8, limits=limits) as client,
            asyncio.TaskGroup() as group,
        ):
            while True:
                group.create_task(self._send(client, *request(self.luck)))
                await asyncio.sleep(self.luck.expovariate(RATE))

    async def _send(
        self, client: httpx.AsyncClient, route: str, method: str, path: str, body: object
    ) -> None:
        began = perf_counter()
        at = clock()
        try:
            status = (await client.request(method, path, json=body)).status_code
        except httpx.HTTPError:
            status = 0
        self.recording.add(
            "edge_requests", time=at, route=route, status=status,
            seconds=round(perf_counter() - began, 3),
        )  # fmt: skip
