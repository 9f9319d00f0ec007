"""A deployed folder becomes an environment that can be run, or a failure that says why."""

import asyncio
import io
from pathlib import Path

import httpx
import pytest

from hud.client.archives import pack
from hud.errors import ConflictError
from hud.trace import new_id
from hud_platform.application import create_app
from hud_platform.environments.build_queue import Builds
from hud_platform.environments.registry import Environments, normalized
from hud_platform.environments.virtual_environment import requirements
from hud_platform.process.config import PlatformConfig
from hud_platform.store.tables import LOCAL_TEAM

ENV = """
import os
from hud import Environment
env = Environment("shop")

@env.template()
async def buy(item: str = "pear"):
    yield item
    yield 1.0
"""


@pytest.fixture
async def server(tmp_path):
    """The application with its builder at work, and the first admin key."""
    app = create_app(PlatformConfig(tmp_path / "home", keys=True))
    platform = app.state.parts
    _, secret = platform.keys.mint("test", LOCAL_TEAM, scopes=("admin",))
    transport = httpx.ASGITransport(app=app)
    async with (
        platform.running(),
        httpx.AsyncClient(
            transport=transport,
            base_url="http://platform",
            headers={"authorization": f"Bearer {secret}"},
        ) as api,
    ):
        yield api, platform


def source(tmp_path, text=ENV, **files):
    folder = tmp_path / "source"
    folder.mkdir(exist_ok=True)
    (folder / "env.py").write_text(text)
    for name, content in files.items():
        (folder / name.replace("_", ".", 1)).write_text(content)
    return folder


async def deploy(api, folder, **options):
    begun = (await api.post("/v2/builds/upload-url")).json()
    archive = io.BytesIO()
    pack(folder, archive)
    put = await api.put(
        begun["upload_url"], content=archive.getvalue(), headers={"authorization": ""}
    )
    assert put.status_code == 200, put.text
    body = {"source": "direct", "build_id": begun["build_id"], "name": "shop", **options}
    made = (await api.post("/v2/builds/trigger", json=body)).json()
    for _ in range(300):
        state = (await api.get(f"/v2/builds/{made['id']}/status")).json()
        if state["status"] != "IN_PROGRESS":
            lines = (await api.get(f"/v2/builds/{made['id']}/lines")).json()["items"]
            return state, [line["text"] for line in lines]
        await asyncio.sleep(0.1)
    raise AssertionError("the build does not end")


@pytest.mark.slow
async def test_a_build_registers_a_version_with_its_tasks(server, tmp_path):
    api, platform = server
    state, _ = await deploy(api, source(tmp_path), environment_variables={"A": "bcdef"})
    assert (state["status"], state["version"]) == ("SUCCEEDED", "1")
    assert state["manifest"]["tasks"][0]["id"] == "buy"
    assert state["lock"]["tasks"] == [{"slug": "buy", "task": "buy", "args": {}}]
    again, lines = await deploy(api, source(tmp_path), environment_variables={"A": "bcdef"})
    assert again["version"] == "2"
    assert any("Nothing has changed" in line for line in lines)
    (found,) = (await api.get("/v2/registry", params={"search": "SHOP"})).json()["items"]
    assert found["latest_build"]["version"] == "2"
    runnable = Environments(platform.store, LOCAL_TEAM).runnable("shop")
    assert runnable.source.name == "env.py"
    assert runnable.variables == {"A": "bcdef"}


@pytest.mark.slow
async def test_a_broken_source_fails_with_file_and_line(server, tmp_path):
    api, _ = server
    state, lines = await deploy(api, source(tmp_path, ENV + "\nimport nothing_of_the_kind\n"))
    assert state["status"] == "FAILED"
    assert state["error_message"].startswith("env.py:11: ModuleNotFoundError")
    assert "nothing_of_the_kind" in lines[-1]


@pytest.mark.slow
async def test_secrets_are_in_no_log_and_not_in_the_store(server, tmp_path):
    api, platform = server
    leak = ENV + "\nraise RuntimeError('it is ' + os.environ.get('TOKEN', 'gone'))\n"
    state, lines = await deploy(
        api,
        source(tmp_path, leak),
        environment_variables={"TOKEN": "hunter2-hunter2"},
        build_secrets={"S": "build-secret-1"},
    )
    assert "it is •••" in state["error_message"]
    stored = b"".join(path.read_bytes() for path in platform.config.home.glob("hud.db*"))
    for secret in ("hunter2-hunter2", "build-secret-1"):
        assert secret not in "".join(lines)
        assert secret.encode() not in stored
    assert not list((platform.config.home / "builds").iterdir())


@pytest.mark.slow
async def test_the_server_s_own_variables_are_not_the_build_s(server, tmp_path, monkeypatch):
    api, _ = server
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-server")
    leak = ENV + "\nassert 'OPENAI_API_KEY' not in os.environ, 'leaked'\n"
    state, _ = await deploy(api, source(tmp_path, leak))
    assert state["status"] == "SUCCEEDED"


async def test_an_archive_needs_a_signature_that_holds(server):
    api, platform = server
    begun = (await api.post("/v2/builds/upload-url")).json()
    place = f"/uploads/{begun['build_id']}"
    wrong = {"token": "e30." + "0" * 64}
    assert (await api.put(place, params=wrong, content=b"x")).status_code == 404
    other = Builds(platform.store, platform.config.home).begin(LOCAL_TEAM)
    query = begun["upload_url"].partition("?")[2]
    assert (await api.put(f"/uploads/{other}?{query}", content=b"x")).status_code == 403
    body = {"build_id": begun["build_id"], "name": "shop"}
    assert (await api.post("/v2/builds/trigger", json=body)).status_code == 409


@pytest.fixture
def builds(tmp_path):
    """The builds of a store, one of them queued."""
    platform = create_app(PlatformConfig(tmp_path)).state.parts
    builds = Builds(platform.store, tmp_path)
    build_id = builds.begin(LOCAL_TEAM)
    builds.received(build_id, "somewhere")
    builds.trigger(
        LOCAL_TEAM, build_id, "x", registry_id=None, project_id=None, options={}, private={}
    )
    yield builds
    platform.close()


def test_a_build_whose_worker_died_is_taken_again_once_its_lease_is_over(builds):
    (held,) = builds.take("one")
    assert builds.take("two") == []
    builds.lease_seconds = -1.0
    assert builds.renew("one", [held.id]) == ([], [])
    (again,) = builds.take("two")
    assert (again.id, again.lease.attempt) == (held.id, 2)
    assert builds.renew("one", [held.id]) == ([], [held.id]), "the first worker lost the build"
    builds.fail(held, "too late")
    with pytest.raises(ConflictError):
        builds.succeed(held, Path("folder"), {})
    assert builds.status(LOCAL_TEAM, held.id)["status"] == "IN_PROGRESS"
    assert builds.succeed(again, Path("folder"), {}) == 1


def test_a_build_that_ends_every_builder_fails_and_says_so(builds):
    builds.lease_seconds = -1.0
    for attempt in range(1, builds.most_attempts + 1):
        (held,) = builds.take("builder")
        assert held.lease.attempt == attempt
    builds.say(held, 1, ["Installing."])
    assert builds.take("builder") == []
    state = builds.status(LOCAL_TEAM, held.id)
    assert state["status"] == "FAILED"
    said = [text for _, text, _ in builds.lines(held.id, 0)]
    assert said == ["Installing.", state["error_message"]]
    assert "not tried again" in said[-1]
    assert not builds.private(held)


@pytest.mark.slow
async def test_another_team_sees_nothing(server, tmp_path):
    api, platform = server
    state, _ = await deploy(api, source(tmp_path))
    _, other = platform.keys.mint("other", new_id(), scopes=("admin",))
    headers = {"authorization": f"Bearer {other}"}
    for path in (f"/v2/builds/{state['id']}/status", "/v2/registry/shop"):
        assert (await api.get(path, headers=headers)).status_code == 404
    assert (await api.get("/v2/registry", headers=headers)).json()["total"] == 0


def test_what_is_ours_is_not_installed(tmp_path):
    (tmp_path / "requirements.txt").write_text(
        "hud\nhud-python>=0.6\n# x\nopenhud[train]\nhudson\nx==1 # y\n"
    )
    assert requirements(tmp_path) == ["hudson", "x==1"]
    (tmp_path / "requirements.txt").unlink()
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname="a"\ndependencies=["hud>=0.6", "y"]\n'
    )
    assert requirements(tmp_path) == ["y"]


@pytest.mark.parametrize(("name", "shown"), [("My Env", "my-env"), ("a__b", "a-b"), ("É.x", "x")])
def test_names_are_normalized(name, shown):
    assert normalized(name) == shown
