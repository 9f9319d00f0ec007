"""Four weeks of events in three calendars; no two have the same title."""

from __future__ import annotations

import sqlite3
from datetime import timedelta
from random import Random

from hud_benchmarks.autonomy.web.application import TODAY
from hud_benchmarks.autonomy.web.people import PEOPLE, insert_people
from hud_benchmarks.autonomy.web.rows import insert

CALENDARS = ("Work", "Team", "Private")
ROOMS = ("Birch", "Maple", "Willow")
WEEKS = 4
HOURS = (9, 11, 13, 15)
_WORDS = {
    "Work": ("Review", "Interview", "Demo", "Budget"),
    "Team": ("Planning", "Retrospective", "Workshop", "Training"),
    "Private": ("Dentist", "Swimming", "Choir", "Garage"),
}


def seed(db: sqlite3.Connection, random: Random) -> None:
    """Fill an empty database."""
    insert_people(db, random, 1)
    calendars = {name: insert(db, "calendars", name=name) for name in CALENDARS}
    number = 0
    for day in range(WEEKS * 7):
        if day % 7 > 4:
            continue
        for hour in HOURS[: random.choice([2, 3, 3, 4])]:
            number += 1
            kind = random.choice(CALENDARS)
            event = insert(
                db,
                "events",
                calendar_id=calendars[kind],
                title=f"{random.choice(_WORDS[kind])} {100 + number}",
                day=(TODAY + timedelta(days=day)).isoformat(),
                starts=f"{hour:02}:00",
                ends=f"{hour + 1:02}:{random.choice(['00', '30'])}",
                place="" if kind == "Private" else random.choice(ROOMS),
            )
            if kind != "Private":
                for person in random.sample(PEOPLE[1:7], random.randint(1, 3)):
                    insert(db, "guests", event_id=event, name=person.name)
