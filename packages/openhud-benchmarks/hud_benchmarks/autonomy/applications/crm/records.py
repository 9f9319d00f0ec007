"""Records of the CRM, and changes of several of them at once: merging, converting, handing over."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

from hud_benchmarks.autonomy.web.application import TODAY
from hud_benchmarks.autonomy.web.rows import insert, update

OPEN_STAGES = ["qualified", "proposal", "negotiation"]
STAGES = [*OPEN_STAGES, "won", "lost"]
LOST_REASONS = ["no decision", "price", "competitor", "no budget"]
DISQUALIFICATIONS = ["too small", "no budget", "not reachable", "competitor"]
ACTIVITIES = ["call", "meeting", "mail", "note"]
INDUSTRIES = ["Energy", "Health", "Logistics", "Retail"]
SOURCES = ["Referral", "Trade fair", "Webinar", "Website"]
ROLES = ["Finance", "IT", "Operations", "Purchasing"]
MERGED = ("name", "email", "phone", "role")
"""Fields of a contact that a merge decides on."""
DEALS = """
    SELECT d.*, a.name AS account, c.name AS contact, u.name AS owner
    FROM deals d JOIN accounts a ON a.id = d.account_id JOIN users u ON u.id = d.owner_id
    LEFT JOIN contacts c ON c.id = d.contact_id
"""
CONTACTS = "SELECT c.*, a.name AS account FROM contacts c JOIN accounts a ON a.id = c.account_id"
TASKS = """
    SELECT t.*, a.name AS account, u.name AS assignee
    FROM tasks t JOIN accounts a ON a.id = t.account_id JOIN users u ON u.id = t.assignee_id
"""


def merge(
    db: sqlite3.Connection, lasting: int, others: Iterable[int], values: Mapping[str, str]
) -> None:
    """Merge contacts into one with these values; deals, activities and leads of the others become its own."""
    update(db, "contacts", lasting, **{name: values[name] for name in MERGED})
    for other in others:
        for table in ("deals", "activities", "leads"):
            db.execute(f"UPDATE {table} SET contact_id = ? WHERE contact_id = ?", (lasting, other))
        db.execute("DELETE FROM contacts WHERE id = ?", (other,))


def convert(
    db: sqlite3.Connection,
    lead: sqlite3.Row,
    account: int | Mapping[str, str],
    role: str,
    deal: Mapping[str, Any],
    owner: int,
) -> int:
    """Turn a lead into a contact and a deal of an account; return the id of the deal.

    `account` is an id, or the industry and city of a new account with the name of the lead's company.
    """
    if not isinstance(account, int):
        account = insert(db, "accounts", name=lead["company"], owner_id=owner, **account)
    contact = insert(
        db,
        "contacts",
        account_id=account,
        name=lead["name"],
        email=lead["email"],
        phone=lead["phone"],
        role=role,
        added=TODAY.isoformat(),
    )
    created = insert(
        db,
        "deals",
        account_id=account,
        contact_id=contact,
        stage="qualified",
        owner_id=owner,
        **deal,
    )
    update(db, "leads", lead["id"], status="converted", contact_id=contact, deal_id=created)
    return created


def reassign(db: sqlite3.Connection, accounts: Iterable[int], owner: int, *, deals: bool) -> None:
    """Give accounts a new owner, with `deals` also their open deals."""
    stages = ", ".join(f"'{stage}'" for stage in OPEN_STAGES)
    for account in accounts:
        update(db, "accounts", account, owner_id=owner)
        if deals:
            db.execute(
                f"UPDATE deals SET owner_id = ? WHERE account_id = ? AND stage IN ({stages})",
                (owner, account),
            )
