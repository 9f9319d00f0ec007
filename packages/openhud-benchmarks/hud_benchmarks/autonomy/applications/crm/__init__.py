"""A CRM: accounts, contacts, leads, deals in stages, quotes, activities and tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hud_benchmarks.autonomy.applications.crm.kinds import KINDS
from hud_benchmarks.autonomy.applications.crm.seed import seed
from hud_benchmarks.autonomy.web.application import WebApplication
from hud_benchmarks.autonomy.web.people import AGENT

if TYPE_CHECKING:
    from hud_benchmarks.autonomy.web.pages import Pages


def _pages() -> Pages:
    from hud_benchmarks.autonomy.applications.crm.pages import pages

    return pages


application = WebApplication(
    name="crm",
    title="Ledgerline CRM",
    folder=Path(__file__).parent,
    seed=seed,
    make_pages=_pages,
    kinds=KINDS,
    user=AGENT.login,
)
