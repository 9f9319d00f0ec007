"""Kinds of tasks on the way to a sale: leads, overdue deals, quotes."""

from __future__ import annotations

import sqlite3
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING, Any

from hud_benchmarks.autonomy.applications.crm.records import DEALS, SOURCES, convert
from hud_benchmarks.autonomy.applications.crm.seed import PRODUCTS, SEAT_PRICE, SEATS, SMALL
from hud_benchmarks.autonomy.web.application import TODAY, Goal, Kind
from hud_benchmarks.autonomy.web.people import AGENT, agent_id
from hud_benchmarks.autonomy.web.rows import insert, update

if TYPE_CHECKING:
    from hud_benchmarks.autonomy.web.browser_actions import BrowserActions


# -- conversion -----------------------------------------------------------------------------------


def _conversion(db: sqlite3.Connection, random: Random) -> Goal:
    source = random.choice(SOURCES)
    leads = db.execute(
        "SELECT * FROM leads WHERE source = ? AND status = 'new' ORDER BY id DESC", (source,)
    ).fetchall()
    small = [row for row in leads if row["seats"] < SEATS]
    closes = (TODAY + timedelta(days=random.randrange(30, 90))).isoformat()
    conversions = {row["id"]: _conversion_of(db, row) for row in leads if row not in small}

    def apply(after: sqlite3.Connection) -> None:
        for row in leads:
            if row in small:
                update(after, "leads", row["id"], status="disqualified", reason="too small")
                continue
            conversion = conversions[row["id"]]
            new = {name: conversion[name] for name in ("industry", "city")}
            deal = {"name": conversion["deal"], "amount": conversion["amount"], "closes": closes}
            account = after.execute("SELECT id FROM accounts WHERE name = ?", (row["company"],)).fetchone()  # fmt: skip
            convert(
                after,
                row,
                account["id"] if account else new,
                conversion["role"],
                deal,
                agent_id(after),
            )

    return Goal(
        f"Work through the new leads from the source {source}. Disqualify those with fewer than {SEATS} seats, with the "
        f"reason too small. Convert the others: to the account of their company where there is one, and to a new one with "
        "the industry and city of the lead's remark where there is none; the contact has the role of the remark. The deal "
        f"is named after the lead's company and the number of seats, such as 'Acme Group, 70 seats', its amount is "
        f"{SEAT_PRICE} EUR for each seat, and it closes on {closes}.",
        apply,
        {
            "closes": closes,
            "small": [row["name"] for row in small],
            "large": [conversions[row["id"]] for row in leads if row not in small],
        },
    )


def _conversion_of(db: sqlite3.Connection, lead: sqlite3.Row) -> dict[str, Any]:
    """Return the fields of a conversion, from the lead's remark."""
    place, role = lead["remark"].rstrip(".").split(". Works in ")
    industry, city = place.split(", ")
    account = db.execute("SELECT 1 FROM accounts WHERE name = ?", (lead["company"],)).fetchone()
    return {
        "lead": lead["name"],
        "account": lead["company"] if account else "",
        "industry": industry,
        "city": city,
        "role": role,
        "deal": f"{lead['company']}, {lead['seats']} seats",
        "amount": lead["seats"] * SEAT_PRICE,
    }


async def _do_conversion(hands: BrowserActions, plan: Any) -> None:
    for name in plan["small"]:
        await hands.click("Leads")
        await hands.click(name)
        await hands.choose("Reason", "too small")
        await hands.click("Disqualify")
    for planned in plan["large"]:
        await hands.click("Leads")
        await hands.click(planned["lead"])
        await hands.click("Convert")
        if planned["account"]:
            await hands.choose("Account", planned["account"])
        else:
            await hands.choose("Industry", planned["industry"])
            await hands.fill("City", planned["city"])
        await hands.click("Continue")
        await hands.choose("Role", planned["role"])
        await hands.click("Continue")
        await hands.fill("Name", planned["deal"])
        await hands.fill("Amount", str(planned["amount"]))
        await hands.fill("Closes", plan["closes"])
        await hands.click("Continue")
        await hands.click("Convert lead")


# -- overdue --------------------------------------------------------------------------------------


def _overdue(db: sqlite3.Connection, random: Random) -> Goal:
    deals = db.execute(
        f"{DEALS} WHERE d.closes < ? AND d.stage NOT IN ('won', 'lost') AND u.login = ? ORDER BY d.id",
        (TODAY.isoformat(), AGENT.login),
    ).fetchall()
    lost = [row for row in deals if row["amount"] < SMALL]
    large = [row for row in deals if row["amount"] >= SMALL]
    reason = random.choice(["no decision", "no budget"])
    closes = (TODAY + timedelta(days=random.randrange(40, 90))).isoformat()
    due = (TODAY + timedelta(days=random.randrange(2, 12))).isoformat()
    task = random.choice(["Call about the decision", "Ask for the decision", "Offer a workshop"])

    def apply(after: sqlite3.Connection) -> None:
        for row in lost:
            update(after, "deals", row["id"], stage="lost", lost_reason=reason)
        for row in large:
            update(after, "deals", row["id"], closes=closes)
            insert(
                after, "tasks", account_id=row["account_id"], title=task, due=due, assignee_id=agent_id(after)
            )  # fmt: skip

    return Goal(
        f"Tidy up your overdue deals: those that you ({AGENT.name}) own, that are open, and that were to close before "
        f"{TODAY}. Mark those below {SMALL:,} EUR as lost, with the reason {reason}. Let the others close on {closes}, and "
        f"add a task '{task}' to the account of each, due {due}, assigned to you.",
        apply,
        {
            "lost": [row["name"] for row in lost],
            "kept": [(row["name"], row["account"]) for row in large],
            "reason": reason,
            "closes": closes,
            "task": (task, due),
        },
    )


async def _do_overdue(hands: BrowserActions, plan: Any) -> None:
    for name in plan["lost"]:
        await hands.click("Deals")
        await hands.click(name)
        await hands.click("Mark as lost")
        await hands.choose("Reason", plan["reason"])
        await hands.click("Mark this deal as lost")
    task, due = plan["task"]
    for name, account in plan["kept"]:
        await hands.click("Deals")
        await hands.click(name)
        await hands.click("Edit deal")
        await hands.fill("Closes", plan["closes"])
        await hands.click("Save deal")
        await hands.click(account)
        await hands.fill("Task", task)
        await hands.fill("Due", due)
        await hands.choose("Assignee", AGENT.name)
        await hands.click("Add task")


# -- quote ----------------------------------------------------------------------------------------


def _quote(db: sqlite3.Connection, random: Random) -> Goal:
    deal = random.choice(
        db.execute(f"{DEALS} WHERE d.stage = 'qualified' ORDER BY d.id").fetchall()
    )
    products = {name: random.randrange(2, 9) for name in random.sample(list(PRODUCTS), 3)}
    limit = random.choice([15_000, 18_000, 21_000])
    goods = sum(PRODUCTS[name] * count for name, count in products.items())
    discount = 12 if goods >= limit else 4
    until = (TODAY + timedelta(days=random.randrange(14, 60))).isoformat()
    summary = f"Sent a quote that is valid until {until}."

    def apply(after: sqlite3.Connection) -> None:
        quote = insert(
            after, "quotes", deal_id=deal["id"], discount=discount, valid_until=until, status="sent"
        )  # fmt: skip
        for name, count in products.items():
            (product,) = after.execute("SELECT id FROM products WHERE name = ?", (name,)).fetchone()
            insert(
                after, "quote_lines", quote_id=quote, product_id=product, quantity=count, price=PRODUCTS[name]
            )  # fmt: skip
        amount = goods - goods * discount // 100
        update(after, "deals", deal["id"], stage="proposal", amount=amount)
        insert(
            after, "activities", account_id=deal["account_id"], contact_id=deal["contact_id"], deal_id=deal["id"],
            kind="mail", summary=summary, day=TODAY.isoformat(), author_id=agent_id(after),
        )  # fmt: skip

    listed = ", ".join(f"{count} × '{name}'" for name, count in products.items())
    return Goal(
        f"Make a quote for the deal '{deal['name']}': {listed}. The discount is 12% where the products cost at least "
        f"{limit:,} EUR before it, and 4% otherwise. The quote is valid until {until}. Send it. Then move the deal to the "
        "stage proposal, set its amount to the total of the quote, and log an activity of the kind mail on the page of the "
        f"deal: '{summary}'",
        apply,
        {
            "deal": deal["name"],
            "products": products,
            "discount": str(discount),
            "until": until,
            "amount": str(goods - goods * discount // 100),
            "summary": summary,
        },
    )


async def _do_quote(hands: BrowserActions, plan: Any) -> None:
    await hands.click("Deals")
    await hands.fill("Name", plan["deal"])
    await hands.click("Search")
    await hands.click(plan["deal"])
    await hands.click("New quote")
    for name, count in plan["products"].items():
        await hands.choose("Product", name)
        await hands.fill("Quantity", str(count))
        await hands.click("Add line")
    await hands.fill("Discount in percent", plan["discount"])
    await hands.fill("Valid until", plan["until"])
    await hands.click("Save conditions")
    await hands.click("Send quote")
    await hands.click("Send this quote")
    await hands.choose("Stage", "proposal")
    await hands.click("Move to stage")
    await hands.click("Edit deal")
    await hands.fill("Amount", plan["amount"])
    await hands.click("Save deal")
    await hands.choose("Kind", "mail")
    await hands.fill("Summary", plan["summary"])
    await hands.click("Log activity")


KINDS = (
    Kind("conversion", _conversion, _do_conversion),
    Kind("overdue", _overdue, _do_overdue),
    Kind("quote", _quote, _do_quote),
)
