"""People of the applications, who are the same in all of them."""

from __future__ import annotations

import sqlite3
from random import Random
from typing import NamedTuple

from hud_benchmarks.autonomy.web.rows import insert


class Person(NamedTuple):
    login: str
    name: str


PEOPLE = tuple(
    Person(name.split()[0].lower(), name)
    for name in (
        "Dana Whitfield", "Omar Haddad", "Priya Raman", "Lena Vogel", "Marcus Oyelaran", "Sofia Lindqvist",
        "Tomas Herrera", "Grace Okafor", "Yuki Tanabe", "Elise Fournier", "Ivan Petrov", "Naomi Brandt",
    )
)  # fmt: skip
AGENT = PEOPLE[0]
"""The person that the agent works as."""
_WORDS = ("amber", "cedar", "delta", "ember", "fjord", "grove", "indigo", "kelp", "lunar", "onyx")


def insert_people(db: sqlite3.Connection, random: Random, count: int) -> list[int]:
    """Fill a table `users` with login, name and password of the first people; return their ids."""
    return [
        insert(db, "users", login=person.login, name=person.name, password=_password(random))
        for person in PEOPLE[:count]
    ]


def agent_id(db: sqlite3.Connection) -> int:
    """Return the id of the user that the agent works as."""
    (user_id,) = db.execute("SELECT id FROM users WHERE login = ?", (AGENT.login,)).fetchone()
    number: int = user_id
    return number


def _password(random: Random) -> str:
    """Draw a password."""
    return f"{random.choice(_WORDS)}-{random.choice(_WORDS)}-{random.randrange(100, 1000)}"
