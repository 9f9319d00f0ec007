"""A settings panel: people, roles, keys, notifications, integrations, retention and billing, in forms of several pages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hud_benchmarks.autonomy.applications.settings.kinds import KINDS
from hud_benchmarks.autonomy.applications.settings.seed import seed
from hud_benchmarks.autonomy.web.application import WebApplication
from hud_benchmarks.autonomy.web.people import AGENT

if TYPE_CHECKING:
    from hud_benchmarks.autonomy.web.pages import Pages


def _pages() -> Pages:
    from hud_benchmarks.autonomy.applications.settings.sections import pages

    return pages


application = WebApplication(
    name="settings",
    title="Settings",
    folder=Path(__file__).parent,
    seed=seed,
    make_pages=_pages,
    kinds=KINDS,
    user=AGENT.login,
)
