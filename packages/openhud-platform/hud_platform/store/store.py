"""Store: one database with the schema of this release.
SQLite (WAL) under `HUD_HOME` for the embedded platform, PostgreSQL by URL. This module has connections and migrations;
the tables are in `tables`.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from hud.durable_files import refuse_irregular
from hud.errors import StoreAwayError, StoreError, StoreFullError, UsageError
from hud.trace.recording.journal import free_space
from hud_platform.store.blobs import Blobs
from hud_platform.store.clock import StoreClock
from hud_platform.store.queries import Query, Row

_log = logging.getLogger("hud.platform")

NO_ROOM = "There is no room on the server's disk."
BROKEN = "The platform's database cannot be used; the server's log says why."
AWAY = "The platform's database does not answer now; try again in a moment."
_REPLACED = (
    "{path} was removed or replaced while it was open, and would lose what is written now. Put it back, or stop this "
    "process and start it again."
)
MIGRATIONS = Path(__file__).parent / "migrations"
HEAD = "0026"
"""Newest migration; a test compares it with the folder."""
BUSY_SECONDS = 30
CHECKPOINT_PAGES = 4_000
"""Pages of SQLite's write-ahead log, 16 MB, after which they are copied into the database."""
CONNECT_SECONDS = 10
_SQLITE_FILES = ("hud.db", "hud.db-wal", "hud.db-shm", "hud.db-journal")
_MIGRATING = 0x6875640001
"""Advisory lock of a migration on PostgreSQL."""
_DRIVERS = {"postgres": "postgresql+psycopg", "postgresql": "postgresql+psycopg"}


class Store:
    """Database with the tables of `tables`, and the blobs."""

    def __init__(self, url: str | sa.URL, blobs: Blobs, *, private: bool = False) -> None:
        self.blobs = blobs
        self._private = private
        self.url = _understood(url)
        self.engine = sa.create_engine(self.url, **_options(self.url))
        if self._is_file:
            sa.event.listen(self.engine, "do_connect", self._refuse_missing)
            sa.event.listen(self.engine, "connect", _prepare_sqlite)
        self.clock = StoreClock(None if self._is_file else self._database_time)
        self._opened = False
        self._file: _Identity = None
        with self._translated():
            self._migrate()
        if self._is_file:
            self._file = _identity(self._path)
        self._opened = True

    @classmethod
    def open(
        cls,
        home: Path,
        url: str | None = None,
        storage: str | None = None,
        *,
        private: bool = False,
    ) -> Store:
        """Open the store at `url`, or the embedded one of a `HUD_HOME`, whose folder is created if necessary.
        `storage` is the URL of the blobs; default: a folder of `home`. `private`: once it is open, errors do not name its
        place, which is only logged. Raises `StoreError` if `home` cannot be created.
        """
        try:
            home.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"HUD_HOME {home} cannot be created: {error.strerror}. Set HUD_HOME to a folder that can be written."
            ) from error
        blobs = Blobs(storage or str(home / "blobs"))
        if url is not None:
            return cls(url, blobs, private=private)
        for name in _SQLITE_FILES:
            # SQLite waits without end for the writer of a pipe, and calls a folder an error of the disk.
            refuse_irregular(home / name)
        file = sa.URL.create("sqlite", database=str(home / "hud.db"))
        return cls(file, blobs, private=private)

    @property
    def _is_file(self) -> bool:
        return self.url.get_backend_name() == "sqlite"

    @contextmanager
    def begin(self) -> Iterator[sa.Connection]:
        """Open a write transaction: committed at the end of the block, rolled back on an exception."""
        with self._translated(), self.engine.connect() as connection:
            self._refuse_replaced(connection)
            if self._is_file:
                # Take the write lock now: a transaction that reads first may fail to upgrade its lock.
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield connection
            connection.commit()

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """Open a read transaction with a consistent snapshot."""
        with self._translated(), self.engine.connect() as connection:
            self._refuse_replaced(connection)
            yield connection

    def rows(self, query: Query, **values: Any) -> Sequence[Row]:
        """Return all rows of one query; `values`: its parameters."""
        with self.read() as connection:
            return connection.execute(query, values).all()

    def row(self, query: Query) -> Row | None:
        """Return the first row of one query; None if there is no row."""
        with self.read() as connection:
            return connection.execute(query).first()

    def values(self, query: Query) -> list[Any]:
        """Return the first column of all rows of one query."""
        with self.read() as connection:
            return list(connection.execute(query).scalars())

    def value(self, query: Query) -> Any:
        """Return the first column of the first row of one query; None if there is no row."""
        with self.read() as connection:
            return connection.execute(query).scalar()

    def page(self, query: Query, limit: int | None, offset: int) -> tuple[Sequence[Row], int]:
        """Return a page of a query's rows (limit None: all from `offset` on), and the total number of rows."""
        counted = query.with_only_columns(sa.func.count(), maintain_column_froms=True)
        with self.read() as connection:
            total = connection.execute(counted.order_by(None)).scalar_one()
            return connection.execute(query.limit(limit).offset(offset)).all(), total

    def write(self, statement: sa.Insert | sa.Update | sa.Delete) -> int:
        """Execute one statement in its own transaction; returns the number of changed rows."""
        with self.begin() as connection:
            return connection.execute(statement).rowcount

    def _refuse_missing(self, *_: object) -> None:
        """Raise `StoreError` before SQLite creates an empty file in the place of one that was removed."""
        if self._opened and _identity(self._path) != self._file:
            raise self._away(_REPLACED.format(path=self._path))

    def _refuse_replaced(self, connection: sa.Connection) -> None:
        """Raise `StoreError` if SQLite's files were removed or replaced: what is written to the old ones is lost."""
        if self._is_file and self._opened:
            self._refuse_missing()
            log = connection.info["log"]
            if log and _identity(f"{self._path}-wal") != log:
                raise self._away(_REPLACED.format(path=self._path))

    def _away(self, sentence: str, kind: type[StoreError] = StoreError) -> StoreError:
        """Return the error of an open store; the address and the user of a database are only logged, for the operator."""
        if self._opened and (self._private or not self._is_file):
            _log.error("%s", sentence)
            sentence = {StoreFullError: NO_ROOM, StoreAwayError: AWAY}.get(kind, BROKEN)
        return kind(sentence)

    @property
    def _path(self) -> str:
        return str(self.url.database)

    def _database_time(self) -> datetime:
        now: datetime = self.value(sa.select(sa.func.clock_timestamp()))
        return now.astimezone(UTC)

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Translate driver exceptions to errors of `hud.errors`."""
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
            sentence = _sentence(self.url, error)
            if "full" in str(error.orig) and self._is_file:
                raise self._away(sentence, StoreFullError) from error
            if operational and self._opened and (not self._is_file or "locked" in sentence):
                raise self._away(sentence, StoreAwayError) from error
            raise self._away(sentence) from error
        except sa.exc.TimeoutError as error:
            _log.error("%s: no connection became free in time.", self.url)
            raise StoreAwayError(AWAY) from error
        except OverflowError as error:  # Raised by SQLite's driver for large integers.
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
                        f"{self.url} was written by a newer release (schema {version}; this one has {HEAD}). "
                        "Upgrade openhud."
                    )
        # Lazy import: it takes 0.1 s, and only a new or an outdated store needs it.
        from alembic import command
        from alembic.config import Config

        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
        with self.begin() as connection:
            if self.url.get_backend_name() == "postgresql":
                # Several processes may open a new database concurrently: one migrates, the others wait for it.
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATING)))
            config.attributes["connection"] = connection
            command.upgrade(config, "head")


def _understood(address: str | sa.URL) -> sa.URL:
    """Return the URL of a supported database, with its driver set. Raises `UsageError` for any other."""
    try:
        url = sa.make_url(address)
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
        # One for each concurrent route: a thread that waits for a connection would block the others.
        return {
            "pool_pre_ping": True,
            "pool_size": 10,
            "max_overflow": 40,
            "connect_args": {"connect_timeout": CONNECT_SECONDS},
        }
    return {"connect_args": {"timeout": BUSY_SECONDS, "check_same_thread": False}}


def _prepare_sqlite(connection: sqlite3.Connection, record: sa.pool.ConnectionPoolEntry) -> None:
    # BEGIN is sent explicitly; the driver's own would start every transaction as a reader.
    connection.isolation_level = None
    connection.execute("PRAGMA journal_mode=WAL")
    # With WAL, NORMAL is durable across crashes of the process; only a power failure can lose the last commits.
    connection.execute("PRAGMA synchronous=NORMAL")
    # Rows of random ids touch most pages again: the longer it waits, the fewer times each page is copied.
    connection.execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}")
    connection.execute(f"PRAGMA busy_timeout={BUSY_SECONDS * 1000}")
    connection.execute(
        "SELECT count(*) FROM sqlite_master"
    ).fetchone()  # Opens the write-ahead log.
    (_, _, path), *_ = connection.execute("PRAGMA database_list")
    record.info["log"] = _identity(f"{path}-wal")


_Identity = tuple[int, int] | None


def _identity(path: str) -> _Identity:
    """Return device and inode of a file; None if it is missing."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _unbindable(error: DBAPIError) -> bool:
    """Return True if a value has a type that the driver cannot bind."""
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
            f"{where} cannot be written: {reason}{free_space(Path(where))}. Earlier records are unaffected. "
            "Free some space, or set HUD_HOME to another disk."
        )
    if "unable to open" in reason or "readonly" in reason:
        return f"{where} cannot be opened for writing ({reason}). Set HUD_HOME to a folder that can be written."
    return f"{where}: {reason}."
