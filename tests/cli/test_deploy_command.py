"""`hud deploy` and `hud sync env` against a server: what is sent, what is not, and what is said."""

import asyncio
import json
import os
import socket
import threading

import pytest
import uvicorn
import websockets

import hud.client
from hud.cli.main import run
from hud.fleet.builds.archives import unpack
from hud_platform.application import create_app
from hud_platform.environments.registry import Environments
from hud_platform.process.config import PlatformConfig
from hud_platform.store.tables import LOCAL_TEAM

ENV = """
from hud import Environment
env = Environment("shop")

@env.template()
async def buy(item: str = "pear"):
    yield item
    yield 1.0
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with its builder: its platform, its address, and a key."""
    home = tmp_path_factory.mktemp("server")
    app = create_app(PlatformConfig(home, keys=True))
    _, key = app.state.parts.keys.mint("test", LOCAL_TEAM, scopes=("admin",))
    listener = socket.create_server(("127.0.0.1", 0))
    served = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on"))
    thread = threading.Thread(target=lambda: asyncio.run(served.serve([listener])))
    thread.start()
    yield app.state.parts, f"http://127.0.0.1:{listener.getsockname()[1]}", key
    served.should_exit = True
    thread.join(timeout=30)
    listener.close()


@pytest.fixture
def folder(tmp_path, monkeypatch, server):
    _, url, key = server
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HUD_API_URL", url)
    monkeypatch.setenv("HUD_API_KEY", key)
    monkeypatch.setenv("NO_COLOR", "1")
    source = tmp_path / "source"
    source.mkdir()
    monkeypatch.chdir(source)
    yield source
    hud.client.disconnect(tmp_path / "home")


def call(capsys, *arguments, code=0):
    capsys.readouterr()
    assert run([*map(str, arguments)]) == code
    captured = capsys.readouterr()
    return captured.out if code == 0 else captured.err


def kept_archive(platform, build_id, target):
    """Unpack what the server was sent for a build."""
    archive = platform.config.home / "blobs" / "archives" / build_id.replace("-", "")
    (file,) = archive.glob("*.tar.gz")
    unpack(file, target)
    return {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_folder_is_shown_sent_built_and_linked(server, folder, capsys, tmp_path):
    platform, _, _ = server
    (folder / "env.py").write_text(ENV)
    (folder / "notes.txt").write_text("x")
    (folder / "big.log").write_text("x")
    (folder / ".gitignore").write_text("*.log\n")
    (folder / ".env").write_text("TOKEN=of-the-env\nHUD_API_KEY=of-this-machine\nHUD_X=1\n")
    said = call(capsys, "deploy", ".", "--yes", "--env", "MORE=1")
    assert "shop: 3 files" in said
    assert "MORE, TOKEN" in said
    assert "of-the-env" not in said
    assert "Version 1 of shop is ready" in said
    runnable = Environments(platform.store, LOCAL_TEAM).runnable("shop")
    assert runnable.variables == {"TOKEN": "of-the-env", "MORE": "1"}
    sent = kept_archive(platform, runnable.build_id, tmp_path / "sent")
    assert sent == {".gitignore", "env.py", "notes.txt"}
    config = json.loads((folder / ".hud/config.json").read_text())
    environments = Environments(platform.store, LOCAL_TEAM)
    assert config["registry_id"] == environments.find("shop")["id"]


@pytest.mark.slow
def test_without_a_terminal_the_progress_of_an_upload_is_not_printed(server, folder, capsys):
    (folder / "env.py").write_text(ENV)
    (folder / "noise.bin").write_bytes(os.urandom(5 << 20))
    assert run(["deploy", ".", "--yes"]) == 0
    assert "%" not in capsys.readouterr().err


def test_a_dry_run_sends_nothing_and_shows_no_value(server, folder, capsys):
    platform, _, _ = server
    (folder / "env.py").write_text(ENV.replace("shop", "dry"))
    options = ("--env", "A=hidden-value", "--secret", "S=hidden-too", "--dry-run", "--json")
    shown = call(capsys, "deploy", *options)
    plan = json.loads(shown)
    assert (plan["name"], plan["files"], plan["dry_run"]) == ("dry", ["env.py"], True)
    assert plan["environment_variables"] == ["A"]
    assert "hidden" not in shown
    assert Environments(platform.store, LOCAL_TEAM).page("dry", 10, 0) == ([], 0)


@pytest.mark.slow
def test_a_build_that_fails_ends_the_command_with_its_reason(folder, capsys):
    (folder / "env.py").write_text(ENV.replace("shop", "broken") + "\nimport not_there_at_all\n")
    said = call(capsys, "deploy", "--yes", code=1)
    assert "env.py:10: ModuleNotFoundError" in said


def test_what_only_the_build_installs_need_not_be_here(folder, capsys):
    (folder / "env.py").write_text("import not_there_at_all\n" + ENV.replace("shop", "elsewhere"))
    plan = json.loads(call(capsys, "deploy", "--dry-run", "--json"))
    assert plan["name"] == "elsewhere"


def test_the_name_has_to_be_clear(folder, capsys):
    (folder / "env.py").write_text(ENV + "other = Environment('bank')\n")
    assert "makes shop, bank" in call(capsys, "deploy", "--dry-run", code=2)
    plan = json.loads(call(capsys, "deploy", "--dry-run", "--json", "--name", "bank"))
    assert plan["name"] == "bank"


@pytest.mark.slow
def test_projects_go_by_name(server, folder, capsys):
    platform, _, _ = server
    (folder / "env.py").write_text(ENV.replace("shop", "projected"))
    assert "no project 'none'" in call(capsys, "deploy", "--yes", "--project", "none", code=2)
    state = json.loads(call(capsys, "deploy", "--json", "--project", "default"))
    assert state["status"] == "SUCCEEDED"
    found = Environments(platform.store, LOCAL_TEAM).find("projected")
    assert found["project_id"] is not None


@pytest.mark.slow
def test_a_folder_is_linked_to_what_the_platform_has(server, folder, capsys):
    (folder / "env.py").write_text(ENV.replace("shop", "linked"))
    missing = call(capsys, "sync", "env", "--yes", code=2)
    assert "no environment 'linked'" in missing
    deployed = json.loads(call(capsys, "deploy", "--json"))
    (folder / ".hud/config.json").unlink()
    dry = json.loads(call(capsys, "sync", "env", "--json", "--dry-run"))
    assert (dry["registry_id"], dry["before"]) == (deployed["registry_id"], None)
    assert not (folder / ".hud/config.json").exists()
    assert "linked to nothing → linked" in call(capsys, "sync", "env", "Linked", "--yes")
    assert "already" in call(capsys, "sync", "env")


def test_without_a_server_the_command_says_what_to_do(folder, capsys, monkeypatch):
    monkeypatch.delenv("HUD_API_URL")
    (folder / "env.py").write_text(ENV)
    assert "hud up" in call(capsys, "deploy", code=2)


async def test_a_log_refuses_strangers_with_the_code_that_clients_know(server):
    _, url, _ = server
    place = f"{url.replace('http', 'ws', 1)}/v2/builds/{'0' * 32}/logs?api_key=hud_unknown"
    async with websockets.connect(place) as socket:
        with pytest.raises(websockets.ConnectionClosed) as closed:
            await socket.recv()
    assert closed.value.rcvd.code == 4003
