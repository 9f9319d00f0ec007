"""The web applications, by name."""

from hud.benchmarks.autonomy.applications import tickets
from hud.benchmarks.autonomy.web.application import WebApplication

WEB: dict[str, WebApplication] = {
    application.name: application for application in (tickets.application,)
}
