"""A database whose disk is full: writes are answered 507 in one sentence, without the server's paths where it has keys."""

import pytest
import sqlalchemy as sa
from tests.security.server import AttackedServer, bearer

from hud.client import connect, disconnect
from hud.errors import StoreError

LARGE = {"name": "p", "description": "x" * 900_000}


def fill(store):
    """Leave no room in an SQLite database for another page."""
    with store.engine.connect() as connection:
        pages = connection.execute(sa.text("PRAGMA page_count")).scalar()

    @sa.event.listens_for(store.engine, "begin")
    def bounded(connection):
        connection.exec_driver_sql(f"PRAGMA max_page_count={pages + 8}")


async def test_a_server_says_that_there_is_no_room_and_not_where(tmp_path, caplog):
    server = AttackedServer(tmp_path / "home")
    if server.parts.store.url.get_backend_name() != "sqlite":
        pytest.skip("PostgreSQL has a disk of its own")
    admin = bearer(server.key())
    fill(server.parts.store)
    answer = await server.ask("POST", "/v2/projects", admin, LARGE)
    assert (answer.status, answer.json()["detail"]) == (
        507,
        "There is no room on the server's disk.",
    )
    assert str(tmp_path) in caplog.text
    server.parts.close()


async def test_the_store_of_this_machine_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    client = connect()
    if client.embedded.parts.store.url.get_backend_name() != "sqlite":
        pytest.skip("PostgreSQL has a disk of its own")
    fill(client.embedded.parts.store)
    with pytest.raises(StoreError, match=f"{tmp_path}.*full.*Free some space"):
        await client.post("/v2/projects", LARGE)
    disconnect(tmp_path)
