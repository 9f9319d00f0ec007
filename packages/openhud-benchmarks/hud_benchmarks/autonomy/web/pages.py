"""`Pages`: handlers of a web application by path, in sections, and `Visit`: one request to one of them."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import ChoiceLoader, Environment, FileSystemLoader
from starlette.applications import Starlette
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from hud_benchmarks.autonomy.web.application import TODAY
from hud_benchmarks.autonomy.web.rows import insert, update

SHARED = Path(__file__).parent / "templates"
COOKIE = "session"
SIGN_IN = "/sign-in"
_MOST_SESSIONS = 64
"""Sessions of a run's application; a further one ends the oldest."""
_FULL = "database or disk is full"
"""Message of SQLite for a database of its largest size."""
Handler = Callable[["Visit"], Response]


@dataclass
class Session:
    """One browser's session."""

    user: int | None = None
    """Id of the user that is signed in."""
    notice: str = ""
    """Sentence for the next page."""
    draft: dict[str, str] = field(default_factory=dict)
    """Fields of a form of several pages, until it is submitted."""


@dataclass(frozen=True)
class Listing:
    """One page of a long list."""

    rows: list[sqlite3.Row]
    page: int
    pages: int
    total: int
    links: dict[int, str]
    """Address of each page, by its number."""


@dataclass
class Visit:
    """One request: its form, the session and the database."""

    db: sqlite3.Connection
    request: Request
    data: FormData
    session: Session
    templates: Environment

    @property
    def query(self) -> dict[str, str]:
        """Parameters of the address, without spaces around them."""
        return {name: value.strip() for name, value in self.request.query_params.items()}

    @property
    def form(self) -> dict[str, str]:
        """Fields of the form, without spaces around them and with plain line ends; the last one of a name."""
        return {name: str(value).replace("\r\n", "\n").strip() for name, value in self.data.items()}

    def several(self, name: str) -> list[str]:
        """Return all values of a field of the form, such as ticked boxes."""
        return [str(value) for value in self.data.getlist(name)]

    @property
    def id(self) -> int:
        """The `{id:int}` of the path."""
        row_id: int = self.request.path_params["id"]
        return row_id

    @property
    def user(self) -> int:
        """Id of the user that is signed in."""
        assert self.session.user is not None
        return self.session.user

    def rows(self, query: str, *values: Any) -> list[sqlite3.Row]:
        return self.db.execute(query, values).fetchall()

    def row(self, query: str, *values: Any) -> sqlite3.Row:
        """Return the one row of a query; the answer is 404 where there is none."""
        record: sqlite3.Row | None = self.db.execute(query, values).fetchone()
        if record is None:
            raise HTTPException(404)
        return record

    def insert(self, table: str, **values: Any) -> int:
        """Insert a row and return its id."""
        return insert(self.db, table, **values)

    def update(self, table: str, row: int, **values: Any) -> None:
        """Set columns of the row with an id."""
        update(self.db, table, row, **values)

    def execute(self, statement: str, *values: Any) -> None:
        self.db.execute(statement, values)

    def listing(self, query: str, *values: Any, size: int = 10) -> Listing:
        """Return the page of a query's rows that the parameter `page` names, 1 where it names none."""
        (total,) = self.row(f"SELECT count(*) FROM ({query})", *values)
        pages = max(1, -(-total // size))
        named = self.query.get("page", "")
        page = min(max(int(named), 1), pages) if named.isdecimal() else 1
        rows = self.rows(f"{query} LIMIT {size} OFFSET {(page - 1) * size}", *values)
        filters = {name: value for name, value in self.query.items() if name != "page"}
        links = {n: f"?{urlencode({**filters, 'page': n})}" for n in range(1, pages + 1)}
        return Listing(rows, page, pages, total, links)

    def page(self, template: str, **values: Any) -> Response:
        """Answer with a page, as 422 where `errors` has any sentences.

        The template also has `form`, `query`, `notice`, `user` and `today`.
        """
        notice, self.session.notice = self.session.notice, ""
        context: dict[str, Any] = {
            "form": self.form,
            "query": self.query,
            "notice": notice,
            "user": self.session.user and self.row("SELECT * FROM users WHERE id = ?", self.user),
            "today": TODAY.isoformat(),
            "errors": [],
        }
        text = self.templates.get_template(template).render(context | values)
        return HTMLResponse(text, 422 if values.get("errors") else 200)

    def go(self, path: str, notice: str = "") -> Response:
        """Answer with a redirection, and a sentence for the page there."""
        self.session.notice = notice
        return RedirectResponse(path, 303)


class Section:
    """Some pages of an application, declared with `@section.get(path)` and `@section.post(path)`."""

    def __init__(self) -> None:
        self.handlers: dict[tuple[str, str], Handler] = {}

    def get(self, path: str) -> Callable[[Handler], Handler]:
        return self._register("GET", path)

    def post(self, path: str) -> Callable[[Handler], Handler]:
        return self._register("POST", path)

    def _register(self, method: str, path: str) -> Callable[[Handler], Handler]:
        def register(handler: Handler) -> Handler:
            self.handlers[method, path] = handler
            return handler

        return register


class Pages(Section):
    """All pages of an application: its own, and those of its sections."""

    def __init__(
        self, title: str, folder: Path, *sections: Section, navigation: dict[str, str]
    ) -> None:
        """`folder` holds `templates/`; `navigation` maps titles to paths."""
        super().__init__()
        for section in sections:
            self.handlers |= section.handlers
        self.templates = Environment(
            loader=ChoiceLoader([FileSystemLoader(folder / "templates"), FileSystemLoader(SHARED)]),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self.templates.globals.update(title=title, navigation=navigation)

    def serve(self, db: sqlite3.Connection, *, accounts: bool) -> Starlette:
        """Return the application over a database; with `accounts` its pages are for users who are signed in."""
        sessions: dict[str, Session] = {}

        def route(method: str, path: str, handler: Handler) -> Route:
            async def answer(request: Request) -> Response:
                token = request.cookies.get(COOKIE, "")
                new = token not in sessions
                token = secrets.token_urlsafe() if new else token
                session = sessions.setdefault(token, Session())
                if len(sessions) > _MOST_SESSIONS:
                    del sessions[next(iter(sessions))]
                visit = Visit(db, request, await request.form(), session, self.templates)
                if accounts and session.user is None and path != SIGN_IN:
                    response: Response = RedirectResponse(SIGN_IN, 303)
                else:
                    response = _answer(visit, handler)
                if new:
                    response.set_cookie(COOKIE, token, httponly=True, samesite="lax")
                return response

            return Route(path, answer, methods=[method])

        handlers = {**self.handlers, **(ACCOUNTS if accounts else {})}
        routes = [route(method, path, handler) for (method, path), handler in handlers.items()]
        return Starlette(routes=[*routes, Route("/style.css", _style)])


def _answer(visit: Visit, handler: Handler) -> Response:
    """Call a handler in one transaction, which an error rolls back."""
    try:
        with visit.db:
            return handler(visit)
    except (KeyError, ValueError, OverflowError, sqlite3.IntegrityError):
        return PlainTextResponse("This form lacks a field, or has a value that cannot be.", 400)
    except sqlite3.OperationalError as error:
        if _FULL not in str(error):
            raise
        return PlainTextResponse("The database is full.", 507)


async def _style(request: Request) -> Response:
    del request
    return PlainTextResponse(
        (SHARED / "style.css").read_text(encoding="utf-8"), media_type="text/css"
    )


def _sign_in_form(visit: Visit) -> Response:
    return visit.page("sign_in.html")


def _sign_in(visit: Visit) -> Response:
    users = visit.rows(
        "SELECT id FROM users WHERE login = ? AND password = ?",
        visit.form.get("login"),
        visit.form.get("password"),
    )
    if not users:
        return visit.page("sign_in.html", errors=["Login and password do not match."])
    visit.session.user = users[0]["id"]
    return visit.go("/")


def _sign_out(visit: Visit) -> Response:
    visit.session.user = None
    return visit.go(SIGN_IN, "You are signed out.")


ACCOUNTS: dict[tuple[str, str], Handler] = {
    ("GET", SIGN_IN): _sign_in_form,
    ("POST", SIGN_IN): _sign_in,
    ("POST", "/sign-out"): _sign_out,
}
"""Pages of every application with users."""
