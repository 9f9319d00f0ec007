"""The shop's PostgreSQL: a fresh database for each incident, and one role for each service."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
from psycopg.rows import dict_row

from hud_benchmarks.incident_lab.lab.cluster import LabError

SCRIPT = Path(__file__).parents[5] / "scripts" / "postgres"
SCHEMA = Path(__file__).parents[1] / "shop" / "schema.sql"
ROLES = ("storefront", "catalog", "orders", "payments", "bank", "worker")
SLOW_MS = 250
FIRST_MIGRATION = 43
INDEXES = (
    "customers_region_idx",
    "products_category_idx",
    "orders_customer_id_idx",
    "shipments_order_id_idx",
    "payments_order_id_idx",
)


class ShopDatabase:
    """A PostgreSQL server of its own, started by `scripts/postgres`."""

    def __init__(self, server: str, log: Path) -> None:
        self.server = server
        self.log = log
        self.log_offset = 0
        self.next_migration = FIRST_MIGRATION
        with psycopg.connect(server, autocommit=True) as connection:
            for role in ROLES:
                connection.execute(f"CREATE ROLE shop_{role} LOGIN")
            for name, value in (
                ("log_min_duration_statement", f"'{SLOW_MS}ms'"),
                ("log_line_prefix", "'%m|%a|%p|'"),
                ("log_timezone", "'UTC'"),
                ("timezone", "'UTC'"),
                ("max_parallel_workers_per_gather", "0"),
                ("jit", "off"),
            ):
                connection.execute(f"ALTER SYSTEM SET {name} = {value}")
            connection.execute("SELECT pg_reload_conf()")
            connection.execute("CREATE DATABASE model_shop")
        with psycopg.connect(self._named("model_shop"), autocommit=True) as connection:
            connection.execute(SCHEMA.read_text())
            connection.execute("VACUUM ANALYZE")

    def url(self, service: str) -> str:
        """Return the address at which a service signs in."""
        where = urlsplit(self.server)
        return f"postgresql://shop_{service}@{where.hostname}:{where.port}/shop"

    def fresh(self, names: Mapping[str, str]) -> None:
        """Make the database anew, its indexes called by these names."""
        self.next_migration = FIRST_MIGRATION
        with psycopg.connect(self.server, autocommit=True) as connection:
            connection.execute("DROP DATABASE IF EXISTS shop WITH (FORCE)")
            connection.execute("CREATE DATABASE shop TEMPLATE model_shop")
        with psycopg.connect(self._named("shop"), autocommit=True) as connection:
            for index in INDEXES:
                connection.execute(f"ALTER INDEX {index} RENAME TO {names[index]}")
                connection.execute(
                    "UPDATE schema_migrations SET statement = replace(statement, %s, %s)",
                    (f" {index} ", f" {names[index]} "),
                )
        self.log_offset = self.log.stat().st_size

    def migrate(self, version: str, author: str, statement: str) -> None:
        """Apply a migration, and write it down as such."""
        with psycopg.connect(self._named("shop")) as connection:
            connection.execute(statement)
            connection.execute(
                "INSERT INTO schema_migrations (version, author, statement) VALUES (%s, %s, %s)",
                (version, author, statement),
            )

    def rows(self, query: str) -> list[dict[str, Any]]:
        """Return what a query answers."""
        with psycopg.connect(self._named("shop"), row_factory=dict_row) as connection:
            return connection.execute(query).fetchall()

    def logged(self) -> Iterator[tuple[str, str, str]]:
        """Yield (time, application, message) of what the server logged since the last fresh database."""
        with self.log.open(errors="replace") as log:
            log.seek(self.log_offset)
            for line in log:
                parts = line.rstrip("\n").split("|", 3)
                if len(parts) == 4:
                    yield parts[0].removesuffix(" UTC"), parts[1], parts[3]

    def _named(self, database: str) -> str:
        return urlsplit(self.server)._replace(path=f"/{database}").geturl()


@contextmanager
def postgresql(folder: Path) -> Iterator[ShopDatabase]:
    """Run a PostgreSQL server in a folder. Raises `LabError` where it cannot be started."""
    script = str(SCRIPT)
    if not SCRIPT.exists():
        raise LabError(f"Recording needs a checkout of the repository: {script} is not there.")
    started = subprocess.run([script, "start", str(folder)], capture_output=True, text=True)
    if started.returncode != 0:
        raise LabError(f"PostgreSQL does not start: {started.stderr.strip()}")
    try:
        url = started.stdout.strip().replace("postgresql+psycopg", "postgresql")
        yield ShopDatabase(url, folder / "log")
    finally:
        subprocess.run([script, "stop", str(folder)], check=False, capture_output=True)
