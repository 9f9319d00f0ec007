"""A CRM of a software vendor: accounts with contacts and deals, leads, and some contacts that were entered three times."""

from __future__ import annotations

import sqlite3
from datetime import timedelta
from random import Random

from hud_benchmarks.autonomy.applications.crm.records import (
    ACTIVITIES,
    INDUSTRIES,
    OPEN_STAGES,
    ROLES,
    SOURCES,
)
from hud_benchmarks.autonomy.web.application import TODAY
from hud_benchmarks.autonomy.web.people import insert_people
from hud_benchmarks.autonomy.web.rows import insert

SEATS = 50
"""Least number of seats of a large lead."""
SEAT_PRICE = 40
SMALL = 10_000
"""Amount below which a deal is small."""
PRODUCTS = {
    "Licence, ten seats": 400, "Licence, hundred seats": 3200, "Single sign-on": 1500, "Data import": 950,
    "Training day": 1100, "Support, standard": 1800, "Support, premium": 4600, "Reporting module": 2700,
}  # fmt: skip
CITIES = ("Bremen", "Ghent", "Aarhus", "Turin", "Lyon", "Porto")
DUPLICATED = 3
"""Persons who are recorded three times."""
_USERS = 6
_NAMES = (
    "Fairwind", "Oakmoor", "Stellar", "Tidemark", "Umber", "Westgate", "Aldine", "Brightwater", "Corvid", "Dunmore",
    "Eastlake", "Foxglove", "Granary", "Hollin", "Ironbark", "Juniper", "Kestrel", "Larkspur", "Meridian", "Northgate",
    "Orchid", "Palisade", "Quarry", "Redfern", "Saltmarsh", "Thornbury", "Upland", "Vantage", "Wexford", "Yarrow",
    "Zephyr", "Ashdown", "Birchall", "Cobalt",
)  # fmt: skip
_KINDS = ("Group", "Works", "Partners", "Holding")
_FIRST = ("Ada", "Bruno", "Cleo", "Dario", "Edda", "Felix", "Gilda", "Hugo", "Ines", "Jonas", "Karin", "Leo", "Mira", "Nils", "Olga")  # fmt: skip
_LAST = ("Quinn", "Salas", "Marsh", "Conti", "Nowak", "Berg", "Castell", "Duval", "Eriksen", "Falk", "Gruber", "Hale")  # fmt: skip
_THINGS = ("licences", "rollout", "training", "support", "renewal")
_SUMMARIES = ("Talked about the plans for the year.", "Sent the price list.", "Asked for a reference.", "Demo of the reports.")  # fmt: skip
_TASKS = ("Send the contract", "Ask for feedback", "Prepare the demo", "Check the invoice")
ACCOUNTS = 22


def seed(db: sqlite3.Connection, random: Random) -> None:
    """Fill an empty database."""
    users = insert_people(db, random, _USERS)
    names = [f"{name} {random.choice(_KINDS)}" for name in random.sample(_NAMES, len(_NAMES))]
    people = random.sample([f"{first} {last}" for first in _FIRST for last in _LAST], 100)
    accounts = [
        insert(
            db, "accounts", name=name, industry=random.choice(INDUSTRIES), city=random.choice(CITIES),
            owner_id=owner,
        )
        for name, owner in zip(names, _shared(users, ACCOUNTS, random), strict=False)
    ]  # fmt: skip
    for account in accounts:
        _insert_contacts(db, random, account, people)
    for account in random.sample(accounts, DUPLICATED):
        _insert_duplicates(db, random, account, users, people.pop())
    _insert_deals(db, random)
    for place, account in enumerate(random.sample(accounts, 3 * _USERS)):
        insert(
            db, "tasks", account_id=account, title=random.choice(_TASKS), due=_later(random), done=place % 3 == 0,
            assignee_id=users[place // 3],
        )  # fmt: skip
    _insert_leads(db, random, names, people)
    for name, price in PRODUCTS.items():
        insert(db, "products", name=name, price=price)


def address(name: str, company: str) -> str:
    """Return the address of a person at a company."""
    return f"{name.lower().replace(' ', '.')}@{company.split()[0].lower()}.example"


def phone(random: Random) -> str:
    """Draw a phone number."""
    return f"{random.randrange(200, 1000)}-{random.randrange(1000, 10_000)}"


def _shared(users: list[int], count: int, random: Random) -> list[int]:
    """Return owners of `count` records in random order, as many records for each user."""
    owners = [users[place % len(users)] for place in range(count)]
    random.shuffle(owners)
    return owners


def _insert_contacts(
    db: sqlite3.Connection, random: Random, account: int, people: list[str]
) -> None:
    (company,) = db.execute("SELECT name FROM accounts WHERE id = ?", (account,)).fetchone()
    for _ in range(random.choice([1, 2, 2, 3])):
        name = people.pop()
        insert(
            db, "contacts", account_id=account, name=name, email=address(name, company), phone=phone(random),
            role=random.choice(ROLES), added=_earlier(random),
        )  # fmt: skip


def _insert_duplicates(
    db: sqlite3.Connection, random: Random, account: int, users: list[int], person: str
) -> None:
    """Record one person three times, with an activity each time."""
    (company,) = db.execute("SELECT name FROM accounts WHERE id = ?", (account,)).fetchone()
    first, last = person.split()
    spellings = (person, f"{first[0]}. {last}", f"{last}, {first}")
    emails = (address(person, company), f"{first.lower()}.{last.lower()}@mail.example", address(last, company))  # fmt: skip
    for days, name, email, role in zip(
        sorted(random.sample(range(30, 400), 3), reverse=True),
        spellings,
        emails,
        random.sample(ROLES, 3),
        strict=True,
    ):
        day = (TODAY - timedelta(days=days)).isoformat()
        contact = insert(
            db, "contacts", account_id=account, name=name, email=email, phone=phone(random), role=role, added=day
        )  # fmt: skip
        insert(
            db, "activities", account_id=account, contact_id=contact, kind=random.choice(ACTIVITIES),
            summary=random.choice(_SUMMARIES), day=day, author_id=random.choice(users),
        )  # fmt: skip


def _insert_deals(db: sqlite3.Connection, random: Random) -> None:
    """Insert one or two deals of each account, some open ones of each owner overdue."""
    accounts = db.execute("SELECT * FROM accounts ORDER BY id").fetchall()
    overdue = [True, False] * 2
    for account in random.sample(accounts, len(accounts)):
        contacts = [
            row["id"]
            for row in db.execute("SELECT id FROM contacts WHERE account_id = ?", (account["id"],))
        ]
        for thing in random.sample(_THINGS, random.choice([1, 1, 2])):
            late = random.random() < 0.15
            stage = random.choice([*OPEN_STAGES, *OPEN_STAGES, "won", "lost"])
            large, owner = random.random() < 0.5, account["owner_id"]
            if overdue:  # Four of the agent's own: two small ones and two large ones.
                large, late, stage, owner = overdue.pop(), True, random.choice(OPEN_STAGES), 1
            elif owner == 1 and stage in OPEN_STAGES:
                late = False
            closed = stage not in OPEN_STAGES
            insert(
                db, "deals", account_id=account["id"], contact_id=random.choice(contacts), owner_id=owner,
                name=f"{account['name'].split()[0]} {thing}", stage=stage,
                lost_reason="price" if stage == "lost" else "",
                amount=(random.randrange(11, 60) if large else random.randrange(2, 10)) * 1000,
                closes=_earlier(random) if late or closed else _later(random),
            )  # fmt: skip


def _insert_leads(
    db: sqlite3.Connection, random: Random, names: list[str], people: list[str]
) -> None:
    """Insert four leads of each source: a known company, a new one, a small one, and one that is disqualified."""
    customers, unknown = random.sample(names[:ACCOUNTS], len(SOURCES)), names[ACCOUNTS:]
    leads = []
    for source, company in zip(SOURCES, customers, strict=True):
        large = [random.randrange(SEATS, 4 * SEATS) for _ in range(2)]
        leads.append((source, company, large[0], "new"))
        leads.append((source, unknown.pop(), large[1], "new"))
        leads.append((source, unknown.pop(), random.randrange(5, SEATS), "new"))
        leads.append((source, unknown.pop(), random.randrange(5, 2 * SEATS), "disqualified"))
    random.shuffle(leads)
    for source, company, seats, status in leads:
        name = people.pop()
        industry, city, role = random.choice(INDUSTRIES), random.choice(CITIES), random.choice(ROLES)  # fmt: skip
        insert(
            db, "leads", name=name, company=company, email=address(name, company), phone=phone(random), source=source,
            seats=seats, remark=f"{industry}, {city}. Works in {role}.", status=status,
            reason="not reachable" if status == "disqualified" else "",
        )  # fmt: skip


def _earlier(random: Random) -> str:
    return (TODAY - timedelta(days=random.randrange(3, 120))).isoformat()


def _later(random: Random) -> str:
    return (TODAY + timedelta(days=random.randrange(3, 120))).isoformat()
