"""The ways in which the shop breaks: eight causes, three places each. All are done to the running shop for real."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hud_benchmarks.incident_lab.lab.database import INDEXES
from hud_benchmarks.incident_lab.lab.finding import Finding

if TYPE_CHECKING:
    from hud_benchmarks.incident_lab.lab.stage import Stage

Injection = Callable[["Stage"], Awaitable[str]]
"""Breaks the shop, and returns the culprit. What it leaves going belongs to the stage's task group."""


@dataclass(frozen=True)
class Fault:
    """One way to break the shop."""

    cause: str
    service: str
    inject: Injection
    seconds: float = 16.0
    """Seconds for which the broken shop is recorded."""
    expires: str | None = None
    """The service whose certificate is to expire when the fault is due."""

    def finding(self, culprit: str) -> Finding:
        """Return what is to be found."""
        return Finding(self.service, self.cause, culprit)


def pool(service: str, path: str) -> Fault:
    """A report is requested over and over; each request holds a connection while it waits for the bank."""

    async def inject(stage: Stage) -> str:
        async def ask() -> None:
            while True:
                await stage.get(service, stage.names[path], timeout=20)

        for _ in range(9):
            stage.background(ask())
        return f"GET {stage.names[path]}"

    return Fault("pool_exhaustion", service, inject)


def index(service: str, name: str, table: str) -> Fault:
    """A migration drops an index that looked unused."""

    async def inject(stage: Stage) -> str:
        await stage.migrate(f"drop_{table}_idx", f"DROP INDEX {stage.names[name]}")
        return stage.names[name]

    return Fault("dropped_index", service, inject)


def deploy(service: str, before: str, after: str, message: str) -> Fault:
    """A release with a bug goes out."""

    async def inject(stage: Stage) -> str:
        return await stage.deploy(service, message, (before, after))

    return Fault("bad_deploy", service, inject)


def certificate(service: str) -> Fault:
    """A certificate expires, since nobody renewed it."""

    async def inject(stage: Stage) -> str:
        return stage.certificates[service].serial

    return Fault("expired_certificate", service, inject, expires=service)


def leak(service: str, memo: str, path: str) -> Fault:
    """A robot crawls the shop with a new parameter each time, and a memo without a bound keeps all of it."""

    async def inject(stage: Stage) -> str:
        async def crawl() -> None:
            while True:
                key = "".join(stage.luck.choices("0123456789abcdef", k=12))
                await stage.get("storefront", path + key, timeout=5)
                await asyncio.sleep(0.02)

        for _ in range(4):
            stage.background(crawl())
        return stage.names[memo]

    return Fault("memory_leak", service, inject, seconds=24.0)


def flag(service: str, key: str) -> Fault:
    """A flag is turned on for data that does not carry what it needs."""

    async def inject(stage: Stage) -> str:
        stage.set_flag(stage.names[key], True)
        return stage.names[key]

    return Fault("wrong_flag", service, inject)


def dead(service: str) -> Fault:
    """A container is evicted and finds no other place."""

    async def inject(stage: Stage) -> str:
        container = stage.cluster.services[service].container
        assert container is not None
        await stage.cluster.evict(service, "The node was low on resource: ephemeral-storage.")
        return container.name

    return Fault("dead_dependency", service, inject)


def poison(spoil: Callable[[dict[str, Any]], dict[str, Any]]) -> Fault:
    """A message gets into the queue that the worker cannot take, and that it dies of."""

    async def inject(stage: Stage) -> str:
        name = f"msg-{''.join(stage.luck.choices('0123456789abcdef', k=10))}"
        message = {
            "id": name,
            "order": 1000 + stage.luck.randrange(900),
            "carrier": "heron",
            "parcels": 2,
        }
        await asyncio.to_thread(stage.push, json.dumps(spoil(message)))
        return name

    return Fault("poisoned_message", "worker", inject, seconds=20.0)


FAULTS: dict[str, Fault] = {
    "pool-orders": pool("orders", "/exports/ledger"),
    "pool-catalog": pool("catalog", "/audit/prices"),
    "pool-payments": pool("payments", "/reconciliation"),
    "index-orders": index("orders", "orders_customer_id_idx", "orders"),
    "index-shipments": index("orders", "shipments_order_id_idx", "shipments"),
    "index-payments": index("payments", "payments_order_id_idx", "payments"),
    "deploy-catalog": deploy(
        "catalog",
        'if row["discount_percent"]:\n        price -=',
        'if "discount_percent" in row:\n        price -=',
        "Discounts: look at the column, not at its value",
    ),
    "deploy-orders": deploy(
        "orders",
        'line["price_cents"] * line["quantity"]',
        'line["unit_price"]["cents"] * line["quantity"]',
        "Baskets: prices by currency",
    ),
    "deploy-payments": deploy(
        "payments",
        '(request["order"], amount, answer["reference"])',
        '(request["order"], amount, answer["bank_reference"])',
        "Bank API v3: field names",
    ),
    "certificate-bank": certificate("bank"),
    "certificate-payments": certificate("payments"),
    "certificate-catalog": certificate("catalog"),
    "leak-storefront": leak("storefront", "campaign_pages", "/browse/tea?campaign="),
    "leak-catalog": leak("catalog", "price_lists", "/product/7?currency="),
    "leak-orders": leak("orders", "viewer_pages", "/neighbours/region-3?viewer="),
    "flag-catalog": flag("catalog", "catalog.member_prices"),
    "flag-orders": flag("orders", "orders.green_delivery"),
    "flag-payments": flag("payments", "payments.instant_settlement"),
    "dead-bank": dead("bank"),
    "dead-cache": dead("cache"),
    "dead-catalog": dead("catalog"),
    "poison-parcels": poison(lambda message: {**message, "parcels": 0}),
    "poison-carrier": poison(lambda message: {**message, "carrier": None}),
    "poison-order": poison(lambda message: {**message, "order": f"A-{message['order']}"}),
}
"""By name."""

HARMLESS_FLAGS = (
    "catalog.compact_cards",
    "catalog.stock_badges",
    "orders.gift_notes",
    "orders.order_emails",
    "payments.receipt_layout",
    "payments.masked_logs",
    "storefront.new_header",
    "storefront.dark_mode",
    "worker.batch_labels",
    "worker.eager_start",
)
"""Flags that change nothing; they are turned on and off in every incident."""
RISKY_FLAGS = (
    "catalog.member_prices",
    "orders.green_delivery",
    "payments.instant_settlement",
)
MEMOS = ("campaign_pages", "price_lists", "viewer_pages")
REPORTS = {
    "orders": "/exports/ledger",
    "catalog": "/audit/prices",
    "payments": "/reconciliation",
}
"""Reports that the accountants request of each service."""
HARMLESS_MIGRATIONS = (
    ("products_add_shelf", "ALTER TABLE products ADD COLUMN shelf text"),
    ("customers_add_locale", "ALTER TABLE customers ADD COLUMN locale text"),
    ("orders_comment", "COMMENT ON COLUMN orders.note IS 'what the customer asked for'"),
    ("customers_name_idx", "CREATE INDEX customers_name_idx ON customers (name)"),
)
HARMLESS_MESSAGES = (
    "Wording of log lines", "Bump build image", "Type hints", "Move constants to the top",
    "Smaller start-up message", "Tidy imports",
)  # fmt: skip


async def disturb(stage: Stage, fault: Fault, luck: random.Random, seconds: float) -> None:
    """Do what goes on in every shop on every day, so that not every change is the culprit."""
    others = [
        name
        for name in ("storefront", "orders", "payments", "catalog", "worker")
        if name != fault.service
    ]
    pause = seconds / 5
    await asyncio.sleep(pause)
    await stage.deploy(luck.choice(others), luck.choice(HARMLESS_MESSAGES))
    await asyncio.sleep(pause)
    harmless = [stage.names[flag] for flag in HARMLESS_FLAGS]
    stage.set_flag(luck.choice(harmless), luck.random() < 0.5, force=True)
    await stage.migrate(*luck.choice(HARMLESS_MIGRATIONS))
    await asyncio.sleep(pause)
    for key in luck.sample(harmless, 2):
        stage.set_flag(key, True, force=True)
    for service, path in REPORTS.items():
        stage.background(stage.get(service, stage.names[path], timeout=20))


def names(luck: random.Random) -> dict[str, str]:
    """Return what things are called in one incident, so that no culprit is known before it is found."""
    numbers = iter(luck.sample(range(100, 1000), 40))
    return {
        **{flag: f"{flag}_{next(numbers)}" for flag in (*HARMLESS_FLAGS, *RISKY_FLAGS)},
        **{memo: f"{memo}_{next(numbers)}" for memo in MEMOS},
        **{index: f"{index}_{next(numbers)}" for index in INDEXES},
        **{path: f"{path}-{next(numbers)}" for path in REPORTS.values()},
    }
