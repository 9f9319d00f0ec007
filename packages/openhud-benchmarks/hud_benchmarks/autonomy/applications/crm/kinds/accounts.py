"""Kinds of tasks with accounts and contacts: duplicates, a handover, a visit."""

from __future__ import annotations

import sqlite3
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING, Any

from hud_benchmarks.autonomy.applications.crm.records import (
    CONTACTS,
    INDUSTRIES,
    MERGED,
    ROLES,
    TASKS,
    merge,
    reassign,
)
from hud_benchmarks.autonomy.applications.crm.seed import DUPLICATED, address, phone
from hud_benchmarks.autonomy.web.application import TODAY, Goal, Kind
from hud_benchmarks.autonomy.web.people import agent_id
from hud_benchmarks.autonomy.web.rows import insert, update

if TYPE_CHECKING:
    from hud_benchmarks.autonomy.web.browser_actions import BrowserActions

LABELS = dict(zip(MERGED, ("Name", "Address", "Phone", "Role"), strict=True))


# -- merge ----------------------------------------------------------------------------------------


def _merge(db: sqlite3.Connection, random: Random) -> Goal:
    persons = random.sample(_duplicated(db), DUPLICATED - 1)
    # 0: the record that was added first; -1: the one that was added last.
    sources = {"name": 0, "email": random.choice([0, -1]), "phone": -1, "role": random.choice([0, -1])}  # fmt: skip
    merges = [
        (records, {name: records[place][name] for name, place in sources.items()})
        for records in persons
    ]

    def apply(after: sqlite3.Connection) -> None:
        for (lasting, *others), values in merges:
            merge(after, lasting["id"], [row["id"] for row in others], values)

    named = " and ".join(f"{records[0]['name']} ({records[0]['account']})" for records in persons)
    first, last = (
        " and ".join(LABELS[name].lower() for name, place in sources.items() if place == wanted)
        for wanted in (0, -1)
    )
    return Goal(
        f"Some people are recorded three times, under different spellings of their names. Merge the three contacts of "
        f"{named} into one each. The record that was added first stays. It keeps its own {first}, and takes the {last} of "
        "the record that was added last. Other contacts of these accounts stay as they are.",
        apply,
        [
            (records[0]["account"], [row["id"] for row in records], values)
            for records, values in merges
        ],
    )


def _duplicated(db: sqlite3.Connection) -> list[list[sqlite3.Row]]:
    """Return the records of each person who is recorded three times, the one that was added first at the front."""
    rows = db.execute(f"{CONTACTS} ORDER BY c.id").fetchall()
    by_name = {(row["account_id"], row["name"]): row for row in rows}
    groups = []
    for row in rows:
        first, *last = row["name"].split()
        spellings = (f"{first[0]}. {last[0]}", f"{last[0]}, {first}")
        others = [by_name.get((row["account_id"], name)) for name in spellings]
        present = [record for record in others if record is not None]
        if len(present) == len(spellings):
            groups.append([row, *present])
    return groups


async def _do_merge(hands: BrowserActions, plan: Any) -> None:
    for account, numbers, values in plan:
        await hands.click("Contacts")
        await hands.fill("Name, address or account", account)
        await hands.click("Search")
        for number in numbers:
            await hands.click("Tick", within=f"Tick {number} ")
        await hands.click("Merge ticked contacts")
        await hands.choose("Record that stays", f"No. {numbers[0]}")
        for name, value in values.items():
            await hands.choose(LABELS[name], value)
        await hands.click("Continue")
        await hands.click("Merge")


# -- handover -------------------------------------------------------------------------------------


def _handover(db: sqlite3.Connection, random: Random) -> Goal:
    leaver, industry = random.choice(_leavers(db))
    first, second = random.sample(
        [row["name"] for row in db.execute("SELECT name FROM users") if row["name"] != leaver], 2
    )
    owned = db.execute(
        "SELECT a.* FROM accounts a JOIN users u ON u.id = a.owner_id WHERE u.name = ? ORDER BY a.name",
        (leaver,),
    ).fetchall()
    moved = [row for row in owned if row["industry"] == industry]
    rest = [row for row in owned if row["industry"] != industry]
    tasks = db.execute(
        f"{TASKS} WHERE u.name = ? AND NOT t.done ORDER BY t.due", (leaver,)
    ).fetchall()

    def apply(after: sqlite3.Connection) -> None:
        (successor,) = after.execute("SELECT id FROM users WHERE name = ?", (first,)).fetchone()
        (other,) = after.execute("SELECT id FROM users WHERE name = ?", (second,)).fetchone()
        reassign(after, [row["id"] for row in moved], successor, deals=True)
        reassign(after, [row["id"] for row in rest], other, deals=False)
        for row in tasks:
            update(after, "tasks", row["id"], assignee_id=other)

    return Goal(
        f"{leaver} leaves. Reassign the accounts of {leaver} in the industry {industry} to {first}, together with the open "
        f"deals of these accounts. Reassign all other accounts of {leaver} to {second}, without their deals. Assign the "
        f"open tasks of {leaver} to {second}; their due days stay.",
        apply,
        {
            "leaver": leaver,
            "industry": industry,
            "owners": (first, second),
            "moved": [row["name"] for row in moved],
            "rest": [row["name"] for row in rest],
            "tasks": [(row["title"], row["account"]) for row in tasks],
        },
    )


def _leavers(db: sqlite3.Connection) -> list[tuple[str, str]]:
    """Return owners and industries in which they have some of their accounts, but not all."""
    leavers = []
    for user in db.execute("SELECT * FROM users WHERE id != ?", (agent_id(db),)).fetchall():
        owned = [
            row["industry"]
            for row in db.execute("SELECT industry FROM accounts WHERE owner_id = ?", (user["id"],))
        ]
        leavers += [
            (user["name"], industry)
            for industry in INDUSTRIES
            if 0 < owned.count(industry) < len(owned)
        ]
    return leavers


async def _do_handover(hands: BrowserActions, plan: Any) -> None:
    first, second = plan["owners"]
    await _reassign(hands, plan, plan["moved"], first, industry=plan["industry"], deals=True)
    await _reassign(hands, plan, plan["rest"], second, industry="any", deals=False)
    for title, account in plan["tasks"]:
        await hands.click("Tasks")
        await hands.choose("Assignee", plan["leaver"])
        await hands.click("Search")
        await hands.click(title, within=account)
        await hands.choose("Assignee", second)
        await hands.click("Save task")


async def _reassign(
    hands: BrowserActions, plan: Any, accounts: list[str], owner: str, *, industry: str, deals: bool
) -> None:
    await hands.click("Accounts")
    await hands.choose("Industry", industry)
    await hands.choose("Owner", plan["leaver"])
    await hands.click("Search")
    for account in accounts:
        await hands.click("Tick", within=account)
    await hands.click("Reassign ticked accounts")
    await hands.choose("New owner", owner)
    if deals:
        await hands.click("Reassign their open deals as well")
    await hands.click("Continue")
    await hands.click("Reassign")


# -- visit ----------------------------------------------------------------------------------------


def _visit(db: sqlite3.Connection, random: Random) -> Goal:
    account = random.choice(db.execute("SELECT * FROM accounts ORDER BY id").fetchall())
    names = random.sample(["Tilda Rook", "Anton Weiss", "Paula Lima", "Sven Ek"], 2)
    people = [
        {
            "name": name,
            "email": address(name, account["name"]),
            "phone": phone(random),
            "role": role,
        }
        for name, role in zip(names, random.sample(ROLES, 2), strict=True)
    ]
    deal = {
        "name": f"{account['name'].split()[0]} workshop",
        "amount": random.randrange(20, 90) * 100,
        "closes": (TODAY + timedelta(days=random.randrange(20, 80))).isoformat(),
    }
    summary = f"Met {names[0]} and {names[1]} about a workshop."
    due = (TODAY + timedelta(days=random.randrange(2, 12))).isoformat()
    colleague = random.choice(
        [row["name"] for row in db.execute("SELECT * FROM users WHERE id != ?", (agent_id(db),))]
    )

    def apply(after: sqlite3.Connection) -> None:
        first, _ = (
            insert(after, "contacts", account_id=account["id"], added=TODAY.isoformat(), **person)
            for person in people
        )
        insert(
            after, "activities", account_id=account["id"], contact_id=first, kind="meeting", summary=summary,
            day=TODAY.isoformat(), author_id=agent_id(after),
        )  # fmt: skip
        (assignee,) = after.execute("SELECT id FROM users WHERE name = ?", (colleague,)).fetchone()
        insert(
            after, "tasks", account_id=account["id"], title="Plan the workshop", due=due, assignee_id=assignee
        )  # fmt: skip
        insert(
            after, "deals", account_id=account["id"], contact_id=first, stage="qualified",
            owner_id=agent_id(after), **deal,
        )  # fmt: skip

    listed = "; ".join(
        f"{person['name']}, {person['email']}, {person['phone']}, {person['role']}"
        for person in people
    )
    return Goal(
        f"You visited {account['name']}. Add the two people whom you met to the contacts of the account: {listed}. Log an "
        f"activity there, of the kind meeting, with {names[0]}: '{summary}' Add a task 'Plan the workshop' to the account, "
        f"due {due}, assigned to {colleague}. Create a deal '{deal['name']}' of the account over {deal['amount']:,} EUR, which "
        f"closes on {deal['closes']}, with the contact {names[0]}; you own it, and it stays in its first stage.",
        apply,
        {
            "account": account["name"],
            "people": people,
            "summary": summary,
            "task": (due, colleague),
            "deal": deal,
        },
    )


async def _do_visit(hands: BrowserActions, plan: Any) -> None:
    people, deal = plan["people"], plan["deal"]
    await hands.click("Accounts")
    await hands.fill("Name", plan["account"])
    await hands.click("Search")
    await hands.click(plan["account"])
    for person in people:
        await hands.click("New contact")
        await hands.fill("Name", person["name"])
        await hands.fill("Address", person["email"])
        await hands.fill("Phone", person["phone"])
        await hands.choose("Role", person["role"])
        await hands.click("Save contact")
    await hands.choose("Kind", "meeting")
    await hands.choose("With", people[0]["name"])
    await hands.fill("Summary", plan["summary"])
    await hands.click("Log activity")
    due, colleague = plan["task"]
    await hands.fill("Task", "Plan the workshop")
    await hands.fill("Due", due)
    await hands.choose("Assignee", colleague)
    await hands.click("Add task")
    await hands.click("New deal")
    await hands.fill("Name", deal["name"])
    await hands.fill("Amount", str(deal["amount"]))
    await hands.fill("Closes", deal["closes"])
    await hands.choose("Contact", people[0]["name"])
    await hands.click("Save deal")


KINDS = (
    Kind("merge", _merge, _do_merge),
    Kind("handover", _handover, _do_handover),
    Kind("visit", _visit, _do_visit),
)
