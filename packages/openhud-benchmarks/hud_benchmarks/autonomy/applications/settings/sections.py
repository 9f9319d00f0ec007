"""All sections of the panel: importing them declares their pages."""

from hud_benchmarks.autonomy.applications.settings import access, account, people, policies
from hud_benchmarks.autonomy.applications.settings.panel import pages

SECTIONS = (account, people, access, policies)
__all__ = ["SECTIONS", "pages"]
