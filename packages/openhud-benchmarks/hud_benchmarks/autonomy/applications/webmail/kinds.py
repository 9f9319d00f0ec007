"""Kinds of tasks in the mailbox."""

from __future__ import annotations

import sqlite3
from random import Random
from typing import TYPE_CHECKING, Any

from hud_benchmarks.autonomy.applications.webmail.seed import OWN, VENDORS
from hud_benchmarks.autonomy.web.application import TODAY, Goal, Kind
from hud_benchmarks.autonomy.web.rows import insert, update

if TYPE_CHECKING:
    from hud_benchmarks.autonomy.web.browser_actions import BrowserActions


# -- file -----------------------------------------------------------------------------------------


def _file(db: sqlite3.Connection, random: Random) -> Goal:
    vendor = random.choice(list(VENDORS))
    invoices = db.execute(
        "SELECT id, subject FROM messages WHERE sender = ? ORDER BY id", (VENDORS[vendor],)
    ).fetchall()
    folder = f"{vendor} {random.choice([2025, 2026])}"
    other = random.choice([name for name in VENDORS if name != vendor])

    def apply(after: sqlite3.Connection) -> None:
        place = insert(after, "folders", name=folder)
        for row in invoices:
            update(after, "messages", row["id"], folder_id=place)
        insert(after, "rules", sender=VENDORS[vendor], subject="Invoice", folder_id=place)

    return Goal(
        f"Create a folder named {folder}, and move all invoices of {vendor} ({VENDORS[vendor]}) from the inbox there; "
        f"those of others, such as {other}, stay. Then set a rule that puts messages whose sender contains "
        f"{VENDORS[vendor]} and whose subject contains Invoice into this folder.",
        apply,
        (VENDORS[vendor], folder, [row["subject"] for row in invoices]),
    )


async def _do_file(hands: BrowserActions, plan: Any) -> None:
    sender, folder, subjects = plan
    await hands.click("Folders")
    await hands.fill("New folder", folder)
    await hands.click("Create folder")
    for subject in subjects:
        await _open(hands, subject, sender)
        await hands.choose("Folder", folder)
        await hands.click("Move")
    await hands.click("Rules")
    await hands.click("New rule")
    await hands.fill("Sender contains", sender)
    await hands.fill("Subject contains", "Invoice")
    await hands.choose("Folder", folder)
    await hands.click("Save rule")


# -- answer ---------------------------------------------------------------------------------------


def _answer(db: sqlite3.Connection, random: Random) -> Goal:
    free = dict(
        zip(("Tuesday", "Wednesday", "Thursday"), random.sample(range(9, 17), 3), strict=True)
    )
    invitations = db.execute(
        "SELECT * FROM messages WHERE subject LIKE 'Meeting about %'"
    ).fetchall()
    answers = {
        row["subject"]: next(
            f"Yes, at {hour}:00 on {day}." for day, hour in free.items() if day in row["body"]
        )
        for row in invitations
    }

    def apply(after: sqlite3.Connection) -> None:
        for row in invitations:
            update(after, "messages", row["id"], folder_id=_folder(after, "Archive"))
            insert(
                after, "messages", folder_id=_folder(after, "Sent"), sender=OWN, recipient=row["sender"],
                subject=f"Re: {row['subject']}", body=answers[row["subject"]], answers=row["id"],
                sent=TODAY.isoformat(),
            )  # fmt: skip

    hours = ", ".join(f"{day} at {hour}:00" for day, hour in free.items())
    return Goal(
        "Three colleagues ask for a meeting, in messages whose subject begins with 'Meeting about'. Reply to each with "
        f"one line, 'Yes, at HOUR on DAY.', for the day that the message names. You are free on {hours}; for instance "
        f"'Yes, at {free['Tuesday']}:00 on Tuesday.' Then move each of the three messages to the folder Archive.",
        apply,
        answers,
    )


async def _do_answer(hands: BrowserActions, plan: Any) -> None:
    for subject, text in plan.items():
        await _open(hands, subject)
        await hands.choose("Folder", "Archive")
        await hands.click("Move")
        await hands.click("Reply")
        await hands.fill("Text", text)
        await hands.click("Review")
        await hands.click("Send")


# -- contacts -------------------------------------------------------------------------------------


def _contacts(db: sqlite3.Connection, random: Random) -> Goal:
    rows = db.execute("SELECT * FROM messages WHERE subject LIKE 'Introduction: %'").fetchall()
    signatures = [(row["id"], row["sender"], row["body"].split("--\n")[1].splitlines()) for row in rows]  # fmt: skip
    people = [
        {"name": name, "email": sender, "company": company, "phone": phone.removeprefix("Phone ")}
        for _, sender, (name, company, phone) in signatures
    ]
    starred = random.choice(rows)

    def apply(after: sqlite3.Connection) -> None:
        for person in people:
            insert(after, "contacts", **person)
        update(after, "messages", starred["id"], starred=1)

    return Goal(
        "Add the three people who introduce themselves in the inbox (subject 'Introduction: COMPANY') to the contacts: "
        "name, address, company and phone number as in their messages. Then put a star on the message with the subject "
        f"'{starred['subject']}'.",
        apply,
        (people, starred["subject"]),
    )


async def _do_contacts(hands: BrowserActions, plan: Any) -> None:
    people, subject = plan
    for person in people:
        await hands.click("Contacts")
        await hands.click("New contact")
        await hands.fill("Name", person["name"])
        await hands.fill("Address", person["email"])
        await hands.fill("Company", person["company"])
        await hands.fill("Phone", person["phone"])
        await hands.click("Save contact")
    await _open(hands, subject)
    await hands.click("Star")


# -- forward --------------------------------------------------------------------------------------


def _forward(db: sqlite3.Connection, random: Random) -> Goal:
    vendor = random.choice(list(VENDORS))
    colleague = random.choice(db.execute("SELECT * FROM contacts ORDER BY id").fetchall())
    invoices = db.execute(
        "SELECT * FROM messages WHERE sender = ? ORDER BY id", (VENDORS[vendor],)
    ).fetchall()[-3:]
    texts = {row["subject"]: f"Please pay this.\n> {row['body']}" for row in invoices}

    def apply(after: sqlite3.Connection) -> None:
        for row in invoices:
            insert(
                after, "messages", folder_id=_folder(after, "Sent"), sender=OWN, recipient=colleague["email"],
                subject=f"Fwd: {row['subject']}", body=texts[row["subject"]], sent=TODAY.isoformat(),
            )  # fmt: skip
            update(after, "messages", row["id"], starred=1)

    return Goal(
        f"Forward the three latest invoices of {vendor} ({VENDORS[vendor]}) to {colleague['name']}, whose address is in "
        "the contacts. Put the line 'Please pay this.' before the quoted text of each, and leave the subject that "
        "forwarding gives. Put a star on each of the three invoices.",
        apply,
        (VENDORS[vendor], colleague["email"], texts),
    )


async def _do_forward(hands: BrowserActions, plan: Any) -> None:
    sender, recipient, texts = plan
    for subject, text in texts.items():
        await _open(hands, subject, sender)
        await hands.click("Star")
        await hands.click("Forward")
        await hands.fill("To", recipient)
        await hands.fill("Text", text)
        await hands.click("Review")
        await hands.click("Send")


# -- advertisements -------------------------------------------------------------------------------


def _advertisements(db: sqlite3.Connection, random: Random) -> Goal:
    rows = db.execute("SELECT * FROM messages WHERE sender LIKE '%@bargains.example'").fetchall()
    folder = random.choice(["Junk", "Advertisements", "Unwanted"])

    def apply(after: sqlite3.Connection) -> None:
        place = insert(after, "folders", name=folder)
        for row in rows:
            update(after, "messages", row["id"], folder_id=_folder(after, "Trash"))
            insert(after, "rules", sender=row["sender"], folder_id=place)
        after.execute("DELETE FROM rules WHERE sender = 'noreply@'")

    return Goal(
        f"Create a folder {folder}. For each address at bargains.example that has written to you, set a rule that puts "
        "messages whose sender contains this address, with any subject, into that folder. Move the messages that have "
        "come from there so far to Trash. Delete the rule for noreply@.",
        apply,
        (folder, [(row["sender"], row["subject"]) for row in rows]),
    )


async def _do_advertisements(hands: BrowserActions, plan: Any) -> None:
    folder, messages = plan
    await hands.click("Folders")
    await hands.fill("New folder", folder)
    await hands.click("Create folder")
    await hands.click("Rules")
    await hands.click("Delete", within="noreply@")
    for sender, subject in messages:
        await hands.click("Rules")
        await hands.click("New rule")
        await hands.fill("Sender contains", sender)
        await hands.choose("Folder", folder)
        await hands.click("Save rule")
        await _open(hands, subject, sender)
        await hands.choose("Folder", "Trash")
        await hands.click("Move")


async def _open(hands: BrowserActions, subject: str, sender: str | None = None) -> None:
    """Open a message by its subject."""
    await hands.click("Search")
    await hands.fill("Text", sender or subject)
    await hands.click("Search all folders")
    await hands.click(subject, within=sender)


def _folder(db: sqlite3.Connection, name: str) -> int:
    (folder_id,) = db.execute("SELECT id FROM folders WHERE name = ?", (name,)).fetchone()
    number: int = folder_id
    return number


KINDS = (
    Kind("file", _file, _do_file),
    Kind("answer", _answer, _do_answer),
    Kind("contacts", _contacts, _do_contacts),
    Kind("forward", _forward, _do_forward),
    Kind("advertisements", _advertisements, _do_advertisements),
)
