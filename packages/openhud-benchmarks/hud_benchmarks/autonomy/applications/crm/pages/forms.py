"""Parts that the forms of the CRM share: options of lists, dates and amounts."""

from __future__ import annotations

from datetime import date

from hud_benchmarks.autonomy.web.pages import Visit

Options = list[tuple[int, str]]


def users(visit: Visit) -> Options:
    """Return the options of a list of users."""
    return _options(visit, "SELECT id, name FROM users ORDER BY name")


def accounts(visit: Visit) -> Options:
    """Return the options of a list of accounts."""
    return _options(visit, "SELECT id, name FROM accounts ORDER BY name")


def contacts(visit: Visit, account: int) -> Options:
    """Return the options of a list of an account's contacts."""
    return _options(visit, "SELECT id, name FROM contacts WHERE account_id = ? ORDER BY id", account)  # fmt: skip


def day_problem(text: str) -> list[str]:
    """Sentences on what is wrong with a date of a form."""
    try:
        date.fromisoformat(text)
    except ValueError:
        return ["A day is written as 2026-03-31."]
    return []


def number_problem(name: str, text: str) -> list[str]:
    """Sentences on what is wrong with a number of a form."""
    return [] if text.isdecimal() and int(text) > 0 else [f"{name}: a whole number from 1."]


def _options(visit: Visit, query: str, *values: int) -> Options:
    return [(row[0], row[1]) for row in visit.rows(query, *values)]
