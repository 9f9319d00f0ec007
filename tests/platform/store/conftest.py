"""Tests of the store run on PostgreSQL, too, where there is one: see `tests/conftest.py`."""

import pytest
from tests.conftest import DATABASE, NOT_ON_POSTGRESQL, STORE_DATABASE, on_postgresql

from hud_platform.store import Store


@pytest.fixture(autouse=True, params=["sqlite", "postgresql"] if STORE_DATABASE else None)
def database(request):
    """Name of the database of the test's stores."""
    if DATABASE is not None or not STORE_DATABASE or request.param == "sqlite":
        yield "sqlite" if DATABASE is None else "postgresql"
        return
    if request.node.get_closest_marker("sqlite"):
        pytest.skip(NOT_ON_POSTGRESQL)
    with on_postgresql():
        yield "postgresql"


@pytest.fixture
def migrations(database, request, monkeypatch):
    """Each new store of a test is migrated; on SQLite others are copies of one that was."""
    if database == "sqlite":
        monkeypatch.setattr(Store, "open", request.getfixturevalue("migrating_open"))
