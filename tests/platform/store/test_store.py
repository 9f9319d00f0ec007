"""The store opens, migrates, and says what is wrong with it."""

import re
import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from threading import Barrier

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from hud.errors import StoreError, UsageError
from hud_platform.store import Store, tables
from hud_platform.store.store import HEAD, MIGRATIONS

pytestmark = pytest.mark.usefixtures("migrations")


def job(identifier):
    return sa.insert(tables.jobs).values(id=identifier, name="x", created_at=datetime.now(UTC))


def test_the_migrations_make_the_tables_that_the_code_uses(tmp_path):
    store = Store.open(tmp_path)
    with store.read() as connection:
        # The full-text index and what SQLite keeps it in are no tables of SQLAlchemy's.
        opts = {"include_object": lambda _, name, *rest: not (name or "").startswith("run_words")}
        context = MigrationContext.configure(connection, opts=opts)
        assert compare_metadata(context, tables.metadata) == []
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


def store_of(version, folder, monkeypatch):
    """A store as an earlier release left it."""
    upgrade = command.upgrade
    with monkeypatch.context() as patch:
        patch.setattr(command, "upgrade", lambda config, _: upgrade(config, version))
        return Store.open(folder)


@pytest.mark.slow
def test_attempts_of_builds_survive_the_migration_to_their_column(tmp_path, monkeypatch):
    store = store_of("0003", tmp_path, monkeypatch)
    options = {"name": "shop", "attempt": 2}
    row = {"id": "a" * 32, "team_id": "b" * 32, "status": "QUEUED", "options": options}
    kept = ("id", "team_id", "status", "options", "created_at")
    old = sa.table("builds", *(sa.column(name, tables.builds.c[name].type) for name in kept))
    with store.begin() as connection:
        connection.execute(sa.insert(old).values(**row, created_at=datetime.now(UTC)))
    with Store.open(tmp_path).read() as connection:
        assert connection.execute(sa.select(tables.builds.c.attempt)).scalar_one() == 2


def test_attempts_of_rollouts_that_wait_become_faults(tmp_path, monkeypatch):
    store = store_of("0004", tmp_path, monkeypatch)
    kept = ("trace_id", "team_id", "spec", "status", "attempt", "created_at")
    old = sa.table("rollouts", *(sa.column(name, tables.rollouts.c[name].type) for name in kept))
    row = {"team_id": "b" * 32, "spec": {}, "status": "queued", "created_at": datetime.now(UTC)}
    with store.begin() as connection:
        for attempt in (0, 3):
            values = {**row, "trace_id": str(attempt) * 32, "attempt": attempt}
            connection.execute(sa.insert(old).values(**values))
    rollouts = tables.rollouts
    faults = sa.select(rollouts.c.faults, rollouts.c.preemptions).order_by(rollouts.c.attempt)
    assert Store.open(tmp_path).rows(faults) == [(0, 0), (3, 0)]


@pytest.mark.parametrize(
    ("name", "purpose"),
    [
        ("m training", "training"),
        ("spring training", "evaluation"),
        ("m held-out step 20", "held_out"),
        ("ask_reader, called in job 0123456789ab", "subagent"),
        ("arithmetic · m", "evaluation"),
    ],
)
def test_purposes_of_older_jobs_are_read_off_their_names(tmp_path, monkeypatch, name, purpose):
    store = store_of("0006", tmp_path, monkeypatch)
    kept = ("id", "team_id", "name", "group_size", "status", "extra", "created_at")
    old = sa.table("jobs", *(sa.column(name, tables.jobs.c[name].type) for name in kept))
    job = {"id": "a" * 32, "team_id": "b" * 32, "name": name, "group_size": 1, "extra": {}}
    model = {"id": "c" * 32, "team_id": "b" * 32, "slug": "m", "kind": "tiny"}
    columns = sa.inspect(store.engine).get_columns("models")
    empty = {sa.JSON: "{}", sa.Integer: 0, sa.String: ""}
    model |= {
        column["name"]: next(
            value for kind, value in empty.items() if isinstance(column["type"], kind)
        )
        for column in columns
        if not column["nullable"] and column["default"] is None and column["name"] not in model
    }
    marks = ", ".join(f":{column}" for column in model)
    with store.begin() as connection:
        values = {**job, "status": "completed", "created_at": datetime.now(UTC)}
        connection.execute(sa.insert(old).values(**values))
        connection.execute(
            sa.text(f"INSERT INTO models ({', '.join(model)}) VALUES ({marks})"), model
        )
    assert Store.open(tmp_path).values(sa.select(tables.jobs.c.purpose)) == [purpose]


def test_processes_that_open_a_new_store_at_once_all_get_it(tmp_path):
    # Threads stand for processes: each opens the database by itself.
    start = Barrier(6)

    def open_one():
        start.wait()
        store = Store.open(tmp_path)
        with store.read() as connection:
            return connection.execute(sa.select(sa.func.count()).select_from(tables.jobs)).scalar()

    with ThreadPoolExecutor(6) as pool:
        counts = [pool.submit(open_one) for _ in range(6)]
        assert [count.result() for count in counts] == [0] * 6


@pytest.mark.sqlite
@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nonsense", "postgresql://user@host/name"),
        ("mysql://localhost/hud", "no store on mysql"),
    ],
)
def test_a_database_that_we_do_not_know_is_refused(tmp_path, url, said):
    with pytest.raises(UsageError, match=said):
        Store.open(tmp_path, url)


@pytest.mark.sqlite
def test_a_database_that_does_not_answer_is_named_without_its_password(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(StoreError, match=where) as told:
            Store.open(tmp_path, f"postgresql://hud:secret@{where}/hud")
    assert "secret" not in str(told.value)
    assert "\n" not in str(told.value)
