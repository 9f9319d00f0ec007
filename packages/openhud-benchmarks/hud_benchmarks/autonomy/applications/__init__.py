"""The web applications, by name."""

from hud_benchmarks.autonomy.applications import (
    calendar,
    crm,
    settings,
    shop,
    tickets,
    webmail,
    wiki,
)
from hud_benchmarks.autonomy.web.application import WebApplication

WEB: dict[str, WebApplication] = {
    module.application.name: module.application
    for module in (tickets, webmail, calendar, wiki, shop, crm, settings)
}
