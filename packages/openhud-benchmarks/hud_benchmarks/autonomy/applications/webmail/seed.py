"""A mailbox: invoices, questions about meetings, orders, people who introduce themselves, and advertisements."""

from __future__ import annotations

import sqlite3
from datetime import timedelta
from random import Random

from hud_benchmarks.autonomy.web.application import TODAY
from hud_benchmarks.autonomy.web.people import AGENT, PEOPLE, insert_people
from hud_benchmarks.autonomy.web.rows import insert

OWN = f"{AGENT.login}@whitfield.example"
VENDORS = {"Papyrus": "billing@papyrus.example", "Nimbus": "accounts@nimbus.example", "Volta": "invoice@volta.example"}  # fmt: skip
ADVERTISERS = ("offers@bargains.example", "deals@bargains.example", "win@bargains.example")
INVOICES_EACH = 4
QUESTIONS = 3
FOLDERS = ("Inbox", "Archive", "Sent", "Trash")
_COMPANIES = ("Fairwind", "Oakmoor", "Stellar", "Tidemark", "Umber", "Westgate")
_TOPICS = ("the budget", "the new office", "hiring", "the release", "the survey", "the contract")


def seed(db: sqlite3.Connection, random: Random) -> None:
    """Fill an empty database."""
    insert_people(db, random, 1)
    folders = {name: insert(db, "folders", name=name) for name in FOLDERS}
    messages = [*_invoices(random), *_questions(random), *_introductions(random), *_chatter(random)]
    random.shuffle(messages)
    for place, (sender, subject, body) in enumerate(messages):
        insert(
            db,
            "messages",
            folder_id=folders["Inbox"],
            sender=sender,
            recipient=OWN,
            subject=subject,
            body=body,
            sent=(TODAY - timedelta(days=(len(messages) - place) // 2)).isoformat(),
        )
    for person in PEOPLE[1:6]:
        insert(db, "contacts", name=person.name, email=address(person.login), company="Whitfield")
    insert(db, "rules", sender="noreply@", subject="", folder_id=folders["Archive"])


def address(login: str) -> str:
    """Return the address of a colleague."""
    return f"{login}@whitfield.example"


def _invoices(random: Random) -> list[tuple[str, str, str]]:
    return [
        (sender, f"Invoice {random.randrange(1000, 10_000)}", f"{name} thanks you. Amount due: {random.randrange(40, 900)} EUR.")
        for name, sender in VENDORS.items()
        for _ in range(INVOICES_EACH)
    ]  # fmt: skip


def _questions(random: Random) -> list[tuple[str, str, str]]:
    """Draw questions of colleagues for an hour of a meeting."""
    asking = random.sample(PEOPLE[1:], QUESTIONS)
    topics = random.sample(_TOPICS, QUESTIONS)
    return [
        (
            address(person.login),
            f"Meeting about {topic}",
            f"Could we meet about {topic} on {random.choice(['Tuesday', 'Wednesday', 'Thursday'])}?\n{person.name}",
        )
        for person, topic in zip(asking, topics, strict=True)
    ]


def _introductions(random: Random) -> list[tuple[str, str, str]]:
    companies = random.sample(_COMPANIES, 3)
    names = random.sample(["Ada Quinn", "Bruno Salas", "Cleo Marsh", "Dario Conti", "Edda Nowak"], 3)  # fmt: skip
    return [
        (
            f"{name.split()[0].lower()}@{company.lower()}.example",
            f"Introduction: {company}",
            f"I am your new contact at {company}.\n--\n{name}\n{company}\nPhone {random.randrange(100, 1000)}-{random.randrange(1000, 10_000)}",
        )
        for name, company in zip(names, companies, strict=True)
    ]


def _chatter(random: Random) -> list[tuple[str, str, str]]:
    lines = ("Thanks.", "See you soon.", "I agree.", "More tomorrow.")
    people = [
        (address(random.choice(PEOPLE[1:]).login), f"Notes on {topic}", random.choice(lines))
        for topic in _TOPICS
        for _ in range(2)
    ]
    advertisements = [
        (sender, f"Only today: {random.randrange(20, 90)}% off", "Click now!")
        for sender in ADVERTISERS
    ]
    return [*people, *advertisements]
