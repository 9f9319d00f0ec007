"""Pages of the CRM."""

from pathlib import Path

from hud_benchmarks.autonomy.applications.crm.pages import (
    accounts,
    contacts,
    deals,
    leads,
    quotes,
    tasks,
)
from hud_benchmarks.autonomy.web.pages import Pages

pages = Pages(
    "Ledgerline CRM",
    Path(__file__).parents[1],
    accounts.section,
    contacts.section,
    leads.section,
    deals.section,
    quotes.section,
    tasks.section,
    navigation={
        "Accounts": "/",
        "Contacts": "/contacts",
        "Leads": "/leads",
        "Deals": "/deals",
        "Pipeline": "/pipeline",
        "Tasks": "/tasks",
        "Products": "/products",
    },
)
pages.templates.filters["euros"] = lambda amount: f"{amount:,} EUR"
