"""The store: one database, opened with the schema of this release.

SQLite (WAL) under `HUD_HOME` in the embedded shape, PostgreSQL where a URL says so. Connections and migrations live here;
the meaning of the tables does not.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from hud.errors import StoreAwayError, StoreError, UsageError
from hud.platform.store.blobs import Blobs
from hud.platform.store.queries import Query, Row
from hud.trace.recording.journal import free_space

_log = logging.getLogger(__name__)

AWAY = "The platform's database does not answer now; try again in a moment."
MIGRATIONS = Path(__file__).parent / "migrations"
HEAD = "0005"
"""Newest migration; a test holds it to the folder."""
BUSY_SECONDS = 30
CONNECT_SECONDS = 10
_MIGRATING = 0x6875640001
"""The advisory lock that whoever migrates a PostgreSQL holds."""
_DRIVERS = {"postgres": "postgresql+psycopg", "postgresql": "postgresql+psycopg"}


class Store:
    """A database with the tables of `tables`, and the blobs beside it."""

    def __init__(self, url: str | sa.URL, blobs: Blobs) -> None:
        self.blobs = blobs
        self.url = _understood(url)
        self.engine = sa.create_engine(self.url, **_options(self.url))
        if self._is_file:
            sa.event.listen(self.engine, "connect", _prepare_sqlite)
        self._opened = False
        with self._told():
            self._migrate()
        self._opened = True

    @classmethod
    def open(cls, home: Path, url: str | None = None, storage: str | None = None) -> Store:
        """Open the store at `url`, or the embedded one of a `HUD_HOME`, whose folder is made if need be.

        `storage` is the URL of the blobs; default: a folder of `home`. Raises `StoreError` where `home` cannot be made.
        """
        try:
            home.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"HUD_HOME {home} cannot be made: {error.strerror}. Set HUD_HOME to a folder that can be written."
            ) from error
        blobs = Blobs(storage or str(home / "blobs"))
        return cls(url or sa.URL.create("sqlite", database=str(home / "hud.db")), blobs)

    @property
    def _is_file(self) -> bool:
        return self.url.get_backend_name() == "sqlite"

    @contextmanager
    def begin(self) -> Iterator[sa.Connection]:
        """A transaction that writes: committed at the end, rolled back by an exception."""
        with self._told(), self.engine.connect() as connection:
            if self._is_file:
                # Take the write lock now: a transaction that reads first could find it gone at its end.
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield connection
            connection.commit()

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """A connection that reads, all of it from one moment."""
        with self._told(), self.engine.connect() as connection:
            yield connection

    def rows(self, query: Query) -> Sequence[Row]:
        """Return all rows of one query."""
        with self.read() as connection:
            return connection.execute(query).all()

    def row(self, query: Query) -> Row | None:
        """Return the first row of one query; None: it has none."""
        with self.read() as connection:
            return connection.execute(query).first()

    def values(self, query: Query) -> list[Any]:
        """Return the first column of all rows of one query."""
        with self.read() as connection:
            return list(connection.execute(query).scalars())

    def value(self, query: Query) -> Any:
        """Return the first column of the first row of one query; None: it has no rows."""
        with self.read() as connection:
            return connection.execute(query).scalar()

    def page(self, query: Query, limit: int | None, offset: int) -> tuple[Sequence[Row], int]:
        """Return a page of a query's rows (limit None: all from `offset` on), and how many rows it has without paging."""
        counted = query.with_only_columns(sa.func.count(), maintain_column_froms=True)
        with self.read() as connection:
            total = connection.execute(counted.order_by(None)).scalar_one()
            return connection.execute(query.limit(limit).offset(offset)).all(), total

    def write(self, statement: sa.Insert | sa.Update | sa.Delete) -> int:
        """Execute one statement in a transaction of its own; returns how many rows it changed."""
        with self.begin() as connection:
            return connection.execute(statement).rowcount

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Say what is wrong with the database in a sentence."""
        try:
            yield
        except DBAPIError as error:
            if isinstance(error, sa.exc.IntegrityError):
                raise
            if isinstance(error, sa.exc.DataError) or _unbindable(error):
                raise UsageError(
                    f"A value of this request cannot be stored: {error.orig}"
                ) from error
            operational = isinstance(error, sa.exc.OperationalError)
            if operational and self._opened and not self._is_file:
                # Where it is, and as whom we go there, is for the operator alone.
                _log.error("%s", _sentence(self.url, error))
                raise StoreAwayError(AWAY) from error
            raise StoreError(_sentence(self.url, error)) from error
        except sa.exc.TimeoutError as error:
            _log.error("%s: no connection became free in time.", self.url)
            raise StoreAwayError(AWAY) from error
        except OverflowError as error:  # SQLite's driver says it so.
            raise UsageError(f"A number of this request is too large: {error}.") from error

    def _migrate(self) -> None:
        with self.engine.connect() as connection:
            if sa.inspect(connection).has_table("alembic_version"):
                version = connection.execute(
                    sa.text("SELECT version_num FROM alembic_version")
                ).scalar()
                if version == HEAD:
                    return
                if version is not None and version > HEAD:
                    raise StoreError(
                        f"{self.url} was written by a newer release (schema {version}; this one knows {HEAD}). "
                        "Upgrade openhud."
                    )
        # Imported here: it costs a tenth of a second, and only a new or an old store needs it.
        from alembic import command
        from alembic.config import Config

        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
        with self.begin() as connection:
            if self.url.get_backend_name() == "postgresql":
                # Processes may open a new database at once; here, too, one migrates and the others find it done.
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATING)))
            config.attributes["connection"] = connection
            command.upgrade(config, "head")


def _understood(given: str | sa.URL) -> sa.URL:
    """Return the URL of a database of a kind that we know, with our driver for it."""
    try:
        url = sa.make_url(given)
    except sa.exc.ArgumentError:
        raise UsageError(
            "The database is given as a URL, such as postgresql://user@host/name."
        ) from None
    url = url.set(drivername=_DRIVERS.get(url.drivername, url.drivername))
    if url.drivername not in ("sqlite", "postgresql+psycopg"):
        raise UsageError(f"There is no store on {url.drivername}; there are sqlite and postgresql.")
    return url


def _options(url: sa.URL) -> dict[str, Any]:
    if url.get_backend_name() != "sqlite":
        # As many as routes that run at once: a thread that waited for a connection would hold up the others.
        return {
            "pool_pre_ping": True,
            "pool_size": 10,
            "max_overflow": 40,
            "connect_args": {"connect_timeout": CONNECT_SECONDS},
        }
    return {"connect_args": {"timeout": BUSY_SECONDS, "check_same_thread": False}}


def _prepare_sqlite(connection: sqlite3.Connection, record: object) -> None:
    del record
    # We say BEGIN ourselves; the driver's own would start every transaction as a reader.
    connection.isolation_level = None
    connection.execute("PRAGMA journal_mode=WAL")
    # With WAL, NORMAL survives the death of the process; only a power cut can lose the last commits.
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute(f"PRAGMA busy_timeout={BUSY_SECONDS * 1000}")


def _unbindable(error: DBAPIError) -> bool:
    """True where a value is of a kind that the driver cannot send."""
    reason = str(error.orig)
    return reason.startswith(("Error binding parameter", "cannot adapt type"))


def _sentence(url: sa.URL, error: DBAPIError) -> str:
    where = url.database or str(url)
    reason = " ".join(str(error.orig).split())
    if url.get_backend_name() == "postgresql":
        return f"{url} (PostgreSQL): {reason.rstrip('.')}."
    if "malformed" in reason or "not a database" in reason:
        return f"{where} is damaged ({reason}). Move it away, or restore a copy."
    if "full" in reason or "disk I/O" in reason:
        return (
            f"{where} cannot be written: {reason}{free_space(Path(where))}. What was recorded before is kept. "
            "Free some space, or set HUD_HOME to another disk."
        )
    if "unable to open" in reason or "readonly" in reason:
        return f"{where} cannot be opened for writing ({reason}). Set HUD_HOME to a folder that can be written."
    return f"{where}: {reason}."
