"""With HUD_TEST_DATABASE_URL set to a PostgreSQL, every store that a test opens lies there, in a schema of its own."""

import hashlib
import os

import pytest

DATABASE = os.environ.get("HUD_TEST_DATABASE_URL")


def schema_url(home) -> str:
    """Return the URL of the schema that stands for a HUD_HOME; made if need be."""
    import psycopg
    import sqlalchemy as sa

    name = "home_" + hashlib.sha256(str(home).encode()).hexdigest()[:24]
    url = sa.make_url(DATABASE)
    with psycopg.connect(
        url.set(drivername="postgresql").render_as_string(), autocommit=True
    ) as at:
        at.execute("SELECT pg_advisory_lock(1)")  # Threads may come for the same one.
        at.execute(f'CREATE SCHEMA IF NOT EXISTS "{name}"')
    return url.update_query_dict({"options": f"-csearch_path={name}"}).render_as_string(
        hide_password=False
    )


def pytest_collection_modifyitems(items):
    if DATABASE is not None:
        skip = pytest.mark.skip(
            reason="speaks of SQLite, or opens the store in processes of its own"
        )
        for item in items:
            if item.get_closest_marker("sqlite"):
                item.add_marker(skip)


@pytest.fixture(autouse=DATABASE is not None)
def on_postgresql(monkeypatch):
    from hud.platform.store import Store

    opened = Store.open.__func__

    def open_there(cls, home, url=None, storage=None):
        there = schema_url(home)
        # Commands that the test starts open the same one.
        monkeypatch.setenv("HUD_DATABASE_URL", there)
        return opened(cls, home, there, storage)

    monkeypatch.setattr(Store, "open", classmethod(open_there))
