"""`WebApplication`: schema, seed, pages and kinds of tasks of one application, and its database for a seed."""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from hud_benchmarks.autonomy.category import Category, Script

if TYPE_CHECKING:
    from hud.environment import Task
    from hud_benchmarks.autonomy.web.browser_actions import BrowserActions
    from hud_benchmarks.autonomy.web.pages import Pages

TODAY = date(2026, 3, 2)
"""Date in all applications; a Monday. They have no other clock, so that equal actions leave equal rows."""


@dataclass(frozen=True)
class Goal:
    """Request of one task, and the state that fulfils it."""

    instruction: str
    apply: Callable[[sqlite3.Connection], None]
    """Make the asked-for changes in the database."""
    plan: Any
    """Facts for the script of the kind."""


@dataclass(frozen=True)
class Kind:
    """Family of tasks in one application: a goal for each seed, and a script that reaches it."""

    name: str
    goal: Callable[[sqlite3.Connection, Random], Goal]
    """Draw a goal from a seeded database, which it leaves as it is."""
    solve: Callable[[BrowserActions, Any], Awaitable[None]] | None = None
    """Reach a goal from its plan, in the browser, signed in where the application has users."""


@dataclass(frozen=True)
class WebApplication:
    """One application. Its folder holds `schema.sql` and `templates/`."""

    name: str
    title: str
    folder: Path
    seed: Callable[[sqlite3.Connection, Random], None]
    """Fill an empty database."""
    make_pages: Callable[[], Pages]
    """Import and return the pages."""
    kinds: tuple[Kind, ...]
    user: str | None = None
    """Login of the user that the agent works as, in the table `users`; None: no sign-in."""
    unjudged: Collection[str] = field(default=())
    """Tables, and columns as `table.column`, that may be left in any state."""

    def database(self, seed: int) -> sqlite3.Connection:
        """Return a database of its own in memory, as it is before a task of this seed."""
        return opened(_template(self, seed))

    def goal(self, kind: str, seed: int) -> Goal:
        """Return the goal of a kind for a seed."""
        goal_kind = next(offered for offered in self.kinds if offered.name == kind)
        return goal_kind.goal(self.database(seed), Random(f"{self.name} {kind} {seed}"))


def opened(content: bytes) -> sqlite3.Connection:
    """Return a database in memory with this content."""
    db = sqlite3.connect(":memory:")
    db.deserialize(content)
    db.row_factory = sqlite3.Row
    return db


def web_category(application: WebApplication) -> Category:
    """Return the category of an application."""

    def make_task(kind: str, seed: int) -> Task:
        from hud_benchmarks.autonomy.web.environment import work

        return work(application=application.name, kind=kind, seed=seed)

    return Category(
        name=application.name,
        kinds=tuple(kind.name for kind in application.kinds),
        make_task=make_task,
        scripts={kind.name: _script(application, kind) for kind in application.kinds if kind.solve},
        needs=("chromium", "bubblewrap"),
    )


def _script(application: WebApplication, kind: Kind) -> Script:
    async def script(run: Any) -> None:
        from hud_benchmarks.autonomy.web.browser_actions import BrowserActions

        hands = BrowserActions(run, await run.open("cdp"))
        seed = run.task.args["seed"]
        if application.user is not None:
            login, password = credentials(application, application.database(seed))
            await hands.fill("Login", login)
            await hands.fill("Password", password)
            await hands.click("Sign in")
        assert kind.solve is not None
        await kind.solve(hands, application.goal(kind.name, seed).plan)

    return script


def credentials(application: WebApplication, db: sqlite3.Connection) -> tuple[str, str]:
    """Return login and password of the user that the agent works as."""
    row = db.execute("SELECT login, password FROM users WHERE login = ?", (application.user,))
    login, password = row.fetchone()
    return login, password


@functools.lru_cache(maxsize=256)
def _template(application: WebApplication, seed: int) -> bytes:
    """Content of the seeded database."""
    db = sqlite3.connect(":memory:")
    db.executescript((application.folder / "schema.sql").read_text(encoding="utf-8"))
    db.row_factory = sqlite3.Row
    with db:
        application.seed(db, Random(f"{application.name} {seed}"))
    return db.serialize()
