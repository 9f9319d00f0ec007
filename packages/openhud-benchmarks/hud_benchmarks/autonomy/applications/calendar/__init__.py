"""A calendar: events of several calendars, with places, guests and notes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hud_benchmarks.autonomy.applications.calendar.kinds import KINDS
from hud_benchmarks.autonomy.applications.calendar.seed import seed
from hud_benchmarks.autonomy.web.application import WebApplication
from hud_benchmarks.autonomy.web.people import AGENT

if TYPE_CHECKING:
    from hud_benchmarks.autonomy.web.pages import Pages


def _pages() -> Pages:
    from hud_benchmarks.autonomy.applications.calendar.pages import pages

    return pages


application = WebApplication(
    name="calendar",
    title="Calendar",
    folder=Path(__file__).parent,
    seed=seed,
    make_pages=_pages,
    kinds=KINDS,
    user=AGENT.login,
)
