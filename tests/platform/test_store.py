"""The store opens, migrates, and says what is wrong with it."""

import re
from datetime import UTC, datetime

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from hud.errors import StoreError
from hud.platform.store import Store, tables
from hud.platform.store.store import HEAD, MIGRATIONS


def job(identifier):
    return sa.insert(tables.jobs).values(id=identifier, name="x", created_at=datetime.now(UTC))


def test_the_migrations_make_the_tables_that_the_code_uses(tmp_path):
    store = Store.open(tmp_path)
    with store.read() as connection:
        assert compare_metadata(MigrationContext.configure(connection), tables.metadata) == []
    newest = max(
        re.match(r"(\d+)_", path.name)[1] for path in (MIGRATIONS / "versions").glob("0*.py")
    )
    assert newest == HEAD


def test_a_transaction_is_all_or_nothing(tmp_path):
    store = Store.open(tmp_path)
    with pytest.raises(ZeroDivisionError), store.begin() as connection:
        connection.execute(job("a" * 32))
        _ = 1 / 0
    with store.begin() as connection:
        connection.execute(job("b" * 32))
    with Store.open(tmp_path).read() as connection:
        assert connection.execute(sa.select(tables.jobs.c.id)).scalars().all() == ["b" * 32]


def test_moments_come_back_to_the_microsecond(tmp_path):
    store = Store.open(tmp_path)
    moment = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    with store.begin() as connection:
        connection.execute(sa.insert(tables.jobs).values(id="a" * 32, name="x", created_at=moment))
        assert connection.execute(sa.select(tables.jobs.c.created_at)).scalar_one() == moment


@pytest.mark.sqlite
def test_a_damaged_database_is_named(tmp_path):
    (tmp_path / "hud.db").write_bytes(b"no database at all, but long enough to look at" * 50)
    with pytest.raises(StoreError, match=r"hud\.db is damaged"):
        Store.open(tmp_path)


@pytest.mark.sqlite
def test_a_home_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="Set HUD_HOME to a folder that can be written"):
        Store.open(tmp_path / "file" / "home")


def test_a_store_of_a_newer_release_is_left_alone(tmp_path):
    store = Store.open(tmp_path)
    with store.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StoreError, match="newer release"):
        Store.open(tmp_path)
