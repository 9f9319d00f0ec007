"""A web shop: a catalogue with variants, cart, checkout, orders, returns, lists, subscriptions and addresses."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hud_benchmarks.autonomy.applications.shop.kinds import KINDS
from hud_benchmarks.autonomy.applications.shop.seed import seed
from hud_benchmarks.autonomy.web.application import WebApplication
from hud_benchmarks.autonomy.web.people import AGENT

if TYPE_CHECKING:
    from hud_benchmarks.autonomy.web.pages import Pages


def _pages() -> Pages:
    from hud_benchmarks.autonomy.applications.shop.pages import pages

    return pages


application = WebApplication(
    name="shop",
    title="Fennel & Oak",
    folder=Path(__file__).parent,
    seed=seed,
    make_pages=_pages,
    kinds=KINDS,
    user=AGENT.login,
)
