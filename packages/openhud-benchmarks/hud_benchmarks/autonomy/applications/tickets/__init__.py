"""A ticket tracker: projects with components, tickets with labels, comments, milestones and resolutions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hud_benchmarks.autonomy.applications.tickets.kinds import KINDS
from hud_benchmarks.autonomy.applications.tickets.seed import seed
from hud_benchmarks.autonomy.web.application import WebApplication
from hud_benchmarks.autonomy.web.people import AGENT

if TYPE_CHECKING:
    from hud_benchmarks.autonomy.web.pages import Pages


def _pages() -> Pages:
    from hud_benchmarks.autonomy.applications.tickets.pages import pages

    return pages


application = WebApplication(
    name="tickets",
    title="Tracker",
    folder=Path(__file__).parent,
    seed=seed,
    make_pages=_pages,
    kinds=KINDS,
    user=AGENT.login,
)
