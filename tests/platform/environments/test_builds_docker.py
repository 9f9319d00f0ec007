"""Where a Docker daemon is configured, Dockerfile.hud is built; here by a stand-in that keeps the command's contract."""

import asyncio
import io
import json

import httpx
import pytest
from tests.fleet.docker_stand_in import stand_in

from hud.client.archives import pack
from hud.errors import AgentFault, UsageError
from hud.eval.runtimes.containers.contained_environment import contained_environment
from hud.eval.runtimes.containers.container import ContainerSpec
from hud_platform.application import create_app
from hud_platform.environments.registry import Environments
from hud_platform.process.config import PlatformConfig
from hud_platform.store.tables import LOCAL_TEAM

ENV = """
import os
from hud import Environment
env = Environment("shop")

@env.tool
async def leave() -> None:
    os._exit(3)

@env.template()
async def buy(item: str = "pear"):
    yield os.environ.get("TOKEN", "none")
    yield 1.0
"""


@pytest.fixture
def docker(tmp_path, monkeypatch):
    """The stand-in's folder: what it was called with, its images, its containers."""
    state = tmp_path / "docker"
    for name, value in stand_in(tmp_path / "bin", state).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HUD_DOCKER", "1")
    return state


@pytest.fixture
async def server(tmp_path, docker):
    app = create_app(PlatformConfig(tmp_path / "home", keys=True))
    platform = app.state.parts
    _, secret = platform.keys.mint("test", LOCAL_TEAM, scopes=("admin",))
    transport, headers = httpx.ASGITransport(app=app), {"authorization": f"Bearer {secret}"}
    api = httpx.AsyncClient(transport=transport, base_url="http://platform", headers=headers)
    async with platform.running(), api:
        yield api, platform


async def deploy(api, tmp_path, text=ENV, dockerfile="FROM python:3.12\n", **options):
    folder = tmp_path / "source"
    folder.mkdir(exist_ok=True)
    (folder / "env.py").write_text(text)
    (folder / "Dockerfile.hud").write_text(dockerfile)
    archive = io.BytesIO()
    pack(folder, archive)
    begun = (await api.post("/v2/builds/upload-url")).json()
    await api.put(begun["upload_url"], content=archive.getvalue())
    body = {"build_id": begun["build_id"], "name": "shop", **options}
    made = (await api.post("/v2/builds/trigger", json=body)).json()
    for _ in range(400):
        state = (await api.get(f"/v2/builds/{made['id']}/status")).json()
        if state["status"] != "IN_PROGRESS":
            lines = (await api.get(f"/v2/builds/{made['id']}/lines")).json()["items"]
            return state, [line["text"] for line in lines]
        await asyncio.sleep(0.1)
    raise AssertionError("the build does not end")


def calls(docker):
    return [json.loads(line) for line in (docker / "calls").read_text().splitlines()]


@pytest.mark.slow
async def test_an_image_is_built_described_and_can_be_run(server, docker, tmp_path):
    api, platform = server
    state, lines = await deploy(
        api,
        tmp_path,
        environment_variables={"TOKEN": "of-the-env"},
        build_args={"ARG": "argument-1"},
        build_secrets={"SECRET": "secret-1"},
    )
    assert state["status"] == "SUCCEEDED", lines
    assert state["manifest"]["tasks"][0]["id"] == "buy"
    assert "#1 building with ••• •••" in lines
    (command, variables), *_ = [call for call in calls(docker) if call[0][0] == "build"]
    assert command[command.index("--build-arg") + 1] == "ARG"
    assert command[command.index("--secret") + 1] == "id=SECRET,env=SECRET"
    assert not any("argument-1" in part or "secret-1" in part for part in command)
    assert (variables["SECRET"], variables["DOCKER_BUILDKIT"]) == ("secret-1", "1")
    assert not any(name.startswith("HUD_") for name in variables)

    found = Environments(platform.store, LOCAL_TEAM).runnable("shop")
    assert found.image == command[command.index("--tag") + 1]
    async with contained_environment(
        ContainerSpec(found.image, variables=found.variables)
    ) as connection:
        assert (await connection.start("buy", {})).prompt == "of-the-env"
    containers = [call[0] for call in calls(docker) if call[0][0] in ("run", "rm")]
    assert [command[0] for command in containers] == ["run", "rm"] * 2
    assert not any("of-the-env" in part for command in containers for part in command)


@pytest.mark.slow
async def test_a_call_that_ends_its_own_container_is_its_agents_failure(server, docker, tmp_path):
    api, platform = server
    await deploy(api, tmp_path)
    image = Environments(platform.store, LOCAL_TEAM).runnable("shop").image
    with pytest.raises(AgentFault, match="exited with 3"):
        async with contained_environment(ContainerSpec(image)) as connection:
            await connection.call_tool("leave", {})


async def test_a_build_or_an_image_that_fails_says_why(server, docker, tmp_path):
    api, _ = server
    state, _ = await deploy(api, tmp_path, dockerfile="FROM x\nRUN false\n")
    assert "did not complete" in state["error_message"]


@pytest.mark.slow
async def test_a_container_that_does_not_serve_is_taken_away(server, docker, tmp_path, monkeypatch):
    api, _ = server
    monkeypatch.setattr("hud_platform.environments.container_images.READY_SECONDS", 3.0)
    state, lines = await deploy(api, tmp_path, text="raise ValueError('no shop today')")
    assert "does not serve its environment" in state["error_message"]
    assert any("no shop today" in line for line in lines)
    assert calls(docker)[-1][0][0] == "rm"


@pytest.mark.slow
async def test_without_a_daemon_the_server_s_own_way_is_taken(server, docker, tmp_path):
    api, platform = server
    (docker / "down").touch()
    state, lines = await deploy(api, tmp_path)
    assert state["status"] == "SUCCEEDED"
    assert any("Cannot connect to the Docker daemon" in line for line in lines)
    assert Environments(platform.store, LOCAL_TEAM).runnable("shop").image is None


async def test_a_source_without_a_dockerfile_needs_no_docker(server, docker, tmp_path, monkeypatch):
    api, _ = server
    monkeypatch.setenv("HUD_DOCKER", "0")
    assert (await deploy(api, tmp_path))[0]["status"] == "SUCCEEDED"
    assert not (docker / "calls").exists()


@pytest.mark.parametrize("name", ["PATH", "DOCKER_HOST", "LD_PRELOAD"])
async def test_an_environment_does_not_choose_the_daemon(docker, name):
    with pytest.raises(UsageError, match=name):
        async with contained_environment(ContainerSpec("x", variables={name: "evil"})):
            pass
    assert all(call[0] == ["info"] for call in calls(docker))
