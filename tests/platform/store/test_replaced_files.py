"""SQLite's files that are removed or replaced while a process has them open: writes are refused, for they would be lost."""

import os
import shutil

import pytest
import sqlalchemy as sa
from tests.security.server import AttackedServer, bearer

from hud.errors import StoreError
from hud_platform.process.background import Background
from hud_platform.store import Store
from hud_platform.store.tables import jobs

pytestmark = pytest.mark.sqlite  # PostgreSQL has no files of ours.
REPLACED = r"hud\.db was removed or replaced while it was open.*start it again\."


def remove(home):
    (home / "hud.db").unlink()


def put_a_copy(home):
    shutil.copyfile(home / "hud.db", home / "copy")
    (home / "copy").replace(home / "hud.db")


def put_a_folder(home):
    (home / "hud.db").unlink()
    (home / "hud.db").mkdir()


def remove_the_log(home):
    (home / "hud.db-wal").unlink()


def replace_the_log(home):
    (home / "hud.db-wal").unlink()
    (home / "hud.db-wal").touch()


def remove_the_home(home):
    shutil.rmtree(home)


HARMS = [remove, put_a_copy, put_a_folder, remove_the_log, replace_the_log, remove_the_home]


@pytest.mark.parametrize("harm", HARMS)
def test_nothing_is_written_into_a_file_that_is_gone(tmp_path, harm):
    store = Store.open(tmp_path / "home")
    harm(tmp_path / "home")
    with pytest.raises(StoreError, match=REPLACED), store.begin():
        pass
    with pytest.raises(StoreError, match=REPLACED):
        store.value(sa.select(sa.func.count()).select_from(jobs))
    store.close()


def test_no_new_database_takes_the_place_of_the_old_one(tmp_path):
    """A new connection would create an empty file, and a server would answer that there are no keys."""
    store = Store.open(tmp_path / "home")
    store.close()
    (tmp_path / "home" / "hud.db").unlink()
    with pytest.raises(StoreError, match=REPLACED):
        store.value(sa.select(1))
    store.close()


def test_files_that_are_put_back_are_used_again(tmp_path):
    home = tmp_path / "home"
    store = Store.open(home)
    os.rename(home, tmp_path / "away")
    with pytest.raises(StoreError, match=REPLACED):
        store.value(sa.select(1))
    os.rename(tmp_path / "away", home)
    assert store.value(sa.select(1)) == 1
    store.close()


def test_other_processes_come_and_go(tmp_path):
    first = Store.open(tmp_path)
    for _ in range(3):
        other = Store.open(tmp_path)
        other.value(sa.select(1))
        other.close()
        assert first.value(sa.select(1)) == 1
    first.close()
    first.value(sa.select(1))  # Opens the files again: the log is a new one.
    first.close()


async def test_a_server_whose_database_is_damaged_says_not_where_it_is(tmp_path):
    server = AttackedServer(tmp_path / "home")
    admin = bearer(server.key())
    server.parts.store.close()
    with (tmp_path / "home" / "hud.db").open("r+b") as file:
        file.write(b"x" * 4096)
    for caller in (admin, bearer("hud_" + "x" * 43)):
        answer = await server.ask("GET", "/v2/projects", caller)
        assert (answer.status, str(tmp_path) in answer.text) == (500, False)
        assert "log says why" in answer.text
    server.parts.close()


async def test_a_server_says_that_it_is_not_ready(tmp_path):
    server = AttackedServer(tmp_path / "home")
    admin = bearer(server.key())
    (tmp_path / "home" / "hud.db").unlink()
    assert (await server.ask("GET", "/readyz", ())).status == 503
    for path in ("/v2/projects", "/v1/models"):
        answer = await server.ask("GET", path, admin)
        assert (answer.status, str(tmp_path) in answer.text) == (500, False)
        assert "log says why" in answer.text
    server.parts.close()


async def test_background_work_says_what_is_wrong_without_a_trace(tmp_path, caplog):
    """It is restarted each second: a server of which a disk is full wrote thousands of lines a minute."""
    store, background = Store.open(tmp_path / "home"), Background()
    shutil.rmtree(tmp_path / "home")

    async def work():
        background.stopping.set()
        store.value(sa.select(1))

    async with background.running([work]):
        await background.stopping.wait()
    (record,) = caplog.records
    assert record.exc_info is None
    assert "hud.db was removed" in record.getMessage()
    store.close()


async def test_a_model_whose_files_are_gone_hides_no_other(tmp_path):
    server = AttackedServer(tmp_path / "home")
    admin = bearer(server.key())
    sizes = {"vocab_size": 300, "hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1}
    folders = []
    for name in ("sound", "torn"):
        body = {"name": name, "texts": ["Say hello."] * 8, "sizes": sizes}
        answer = await server.ask("POST", "/v2/models/create", admin, body, seconds=300)
        model = answer.json()
        folders.append(tmp_path / "home" / "models" / model["id"].replace("-", ""))
    shutil.rmtree(folders[1])
    answer = await server.ask("GET", "/v1/models", admin)
    listed = {row["id"]: row for row in answer.json()["data"]}
    assert listed["sound"]["max_model_len"] > 0
    assert "torn" in listed
    answer = await server.ask("GET", "/v1beta/models", admin)
    assert (answer.status, "torn" in answer.text) == (200, True)
    server.parts.close()
