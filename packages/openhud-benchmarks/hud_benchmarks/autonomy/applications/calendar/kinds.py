"""Kinds of tasks in the calendar."""

from __future__ import annotations

import sqlite3
from datetime import date, timedelta
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Any

from hud_benchmarks.autonomy.applications.calendar.seed import ROOMS, WEEKS
from hud_benchmarks.autonomy.web.application import TODAY, Goal, Kind
from hud_benchmarks.autonomy.web.people import PEOPLE
from hud_benchmarks.autonomy.web.rows import insert, update

if TYPE_CHECKING:
    from hud_benchmarks.autonomy.web.browser_actions import BrowserActions

EVENTS = "SELECT e.*, c.name AS calendar FROM events e JOIN calendars c ON c.id = e.calendar_id"


# -- postpone -------------------------------------------------------------------------------------


def _postpone(db: sqlite3.Connection, random: Random) -> Goal:
    full = db.execute("SELECT day FROM events GROUP BY day HAVING count(*) >= 3 ORDER BY day").fetchall()  # fmt: skip
    day = random.choice(full)["day"]
    events = db.execute("SELECT * FROM events WHERE day = ? ORDER BY starts", (day,)).fetchall()[:3]
    later = (date.fromisoformat(day) + timedelta(weeks=WEEKS)).isoformat()
    note = f"Moved from {day}."

    def apply(after: sqlite3.Connection) -> None:
        for row in events:
            update(after, "events", row["id"], day=later, notes=note)

    return Goal(
        f"You are away on {day}. Move the first three events of that day to {later}, at the same times, and write "
        f"'{note}' into the notes of each.",
        apply,
        (later, note, [row["title"] for row in events]),
    )


async def _do_postpone(hands: BrowserActions, plan: Any) -> None:
    later, note, titles = plan
    for title in titles:
        await _open(hands, title)
        await hands.click("Edit")
        await hands.fill("Day", later)
        await hands.fill("Notes", note)
        await hands.click("Save event")


# -- series ---------------------------------------------------------------------------------------


def _series(db: sqlite3.Connection, random: Random) -> Goal:
    del db
    topic = random.choice(["Mentoring", "Book club", "Status", "Bug hunt"])
    guest = random.choice(PEOPLE[1:]).name
    room = random.choice(ROOMS)
    first = TODAY + timedelta(days=random.randrange(5))
    hour = random.choice([16, 17])
    starts, ends = f"{hour}:00", f"{hour}:45"
    days = {
        f"{topic}, part {part}": (first + timedelta(weeks=part)).isoformat() for part in (1, 2, 3)
    }

    def apply(after: sqlite3.Connection) -> None:
        calendar = _calendar(after, "Team")
        for title, day in days.items():
            event = insert(
                after, "events", calendar_id=calendar, title=title, day=day, starts=starts, ends=ends, place=room
            )  # fmt: skip
            insert(after, "guests", event_id=event, name=guest)

    listed = ", ".join(f"'{title}' on {day}" for title, day in days.items())
    return Goal(
        f"Create three events in the calendar Team, each from {starts} to {ends} in {room}, without notes, with {guest} "
        f"as the only guest: {listed}.",
        apply,
        (days, starts, ends, room, guest),
    )


async def _do_series(hands: BrowserActions, plan: Any) -> None:
    days, starts, ends, room, guest = plan
    for title, day in days.items():
        await hands.click("New event")
        await hands.fill("Title", title)
        await hands.choose("Calendar", "Team")
        await hands.fill("Day", day)
        await hands.fill("Starts", starts)
        await hands.fill("Ends", ends)
        await hands.fill("Place", room)
        await hands.click("Save event")
        await hands.fill("Guest", guest)
        await hands.click("Invite")


# -- room -----------------------------------------------------------------------------------------


def _room(db: sqlite3.Connection, random: Random) -> Goal:
    room = random.choice(ROOMS)
    new = random.choice(["Aspen", "Cypress", "Rowan"])
    query = f"{EVENTS} WHERE e.place = ? AND c.name = 'Team' AND e.day <= ? ORDER BY e.day"
    rows = db.execute(query, (room, "9999")).fetchall()
    last = rows[:5][-1]["day"]
    rows = db.execute(query, (room, last)).fetchall()

    def apply(after: sqlite3.Connection) -> None:
        for row in rows:
            update(after, "events", row["id"], place=new)

    return Goal(
        f"The room {room} is closed. Move all events of the calendar Team that take place there from {TODAY} until "
        f"{last}, both included, to the room {new}. Events of other calendars, and later ones, stay in {room}.",
        apply,
        (new, [row["title"] for row in rows]),
    )


async def _do_room(hands: BrowserActions, plan: Any) -> None:
    new, titles = plan
    for title in titles:
        await _open(hands, title)
        await hands.click("Edit")
        await hands.fill("Place", new)
        await hands.click("Save event")


# -- leave ----------------------------------------------------------------------------------------


def _leave(db: sqlite3.Connection, random: Random) -> Goal:
    counts = db.execute(
        f"SELECT day, count(*) AS work FROM ({EVENTS}) WHERE calendar != 'Private' GROUP BY day ORDER BY day"
    ).fetchall()
    first, second = random.choice(
        [
            (first["day"], two["day"])
            for first, two in pairwise(counts)
            if 3 <= first["work"] + two["work"] <= 5
            and date.fromisoformat(two["day"]) - date.fromisoformat(first["day"]) == timedelta(1)
        ]
    )
    titles = [
        row["title"]
        for row in db.execute(
            f"{EVENTS} WHERE c.name != 'Private' AND e.day IN (?, ?)", (first, second)
        )
    ]

    def apply(after: sqlite3.Connection) -> None:
        for title in titles:
            (event,) = after.execute("SELECT id FROM events WHERE title = ?", (title,)).fetchone()
            after.execute("DELETE FROM guests WHERE event_id = ?", (event,))
            after.execute("DELETE FROM events WHERE id = ?", (event,))
        calendar = _calendar(after, "Private")
        for day in (first, second):
            insert(
                after, "events", calendar_id=calendar, title="Day off", day=day, starts="08:00", ends="18:00"
            )  # fmt: skip

    return Goal(
        f"You take {first} and {second} off. Cancel all events of the calendars Work and Team on these two days; those "
        "of the calendar Private stay. Then create an event 'Day off' in the calendar Private on each of the two days, "
        "from 08:00 to 18:00, without place, notes or guests.",
        apply,
        (titles, (first, second)),
    )


async def _do_leave(hands: BrowserActions, plan: Any) -> None:
    titles, days = plan
    for title in titles:
        await _open(hands, title)
        await hands.click("Cancel event")
        await hands.click("Cancel this event")
    for day in days:
        await hands.click("New event")
        await hands.fill("Title", "Day off")
        await hands.choose("Calendar", "Private")
        await hands.fill("Day", day)
        await hands.fill("Starts", "08:00")
        await hands.fill("Ends", "18:00")
        await hands.click("Save event")


# -- substitute -----------------------------------------------------------------------------------


def _substitute(db: sqlite3.Connection, random: Random) -> Goal:
    people = [person.name for person in PEOPLE[1:7]]
    absent = random.choice(people)
    query = f"{EVENTS} JOIN guests g ON g.event_id = e.id WHERE g.name = ? AND e.day <= ? ORDER BY e.day"
    rows = db.execute(query, (absent, "9999")).fetchall()
    until = rows[:4][-1]["day"]
    rows = db.execute(query, (absent, until)).fetchall()
    substitute = random.choice([person.name for person in PEOPLE[7:]])

    def apply(after: sqlite3.Connection) -> None:
        for row in rows:
            after.execute(
                "UPDATE guests SET name = ? WHERE event_id = ? AND name = ?",
                (substitute, row["id"], absent),
            )

    return Goal(
        f"{absent} is ill until {until}. In all events from {TODAY} until {until}, both included, to which {absent} is "
        f"invited, remove {absent} from the guests and invite {substitute} instead.",
        apply,
        (absent, substitute, [row["title"] for row in rows]),
    )


async def _do_substitute(hands: BrowserActions, plan: Any) -> None:
    absent, substitute, titles = plan
    for title in titles:
        await _open(hands, title)
        await hands.click("Remove", within=absent)
        await hands.fill("Guest", substitute)
        await hands.click("Invite")


async def _open(hands: BrowserActions, title: str) -> None:
    """Open an event by its title."""
    await hands.click("Search")
    await hands.fill("Title, place or guest", title)
    await hands.click("Find")
    await hands.click(title)


def _calendar(db: sqlite3.Connection, name: str) -> int:
    (calendar_id,) = db.execute("SELECT id FROM calendars WHERE name = ?", (name,)).fetchone()
    number: int = calendar_id
    return number


KINDS = (
    Kind("postpone", _postpone, _do_postpone),
    Kind("series", _series, _do_series),
    Kind("room", _room, _do_room),
    Kind("leave", _leave, _do_leave),
    Kind("substitute", _substitute, _do_substitute),
)
