"""What builds promise when clients, sources and servers misbehave."""

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

import hud
from hud.client.archives import pack
from hud.errors import HudError, UsageError
from hud.processes.presence import process_started
from hud.trace import new_id
from hud_platform.application import create_app
from hud_platform.environments import build_log
from hud_platform.environments.build_queue import Builds
from hud_platform.environments.registry import Environments
from hud_platform.environments.virtual_environment import requirements
from hud_platform.process.config import BuildLimits, PlatformConfig
from hud_platform.store.tables import LOCAL_TEAM

ENV = """
from hud import Environment
env = Environment("shop")

@env.template()
async def buy(item: str = "pear"):
    yield item
    yield 1.0
"""


async def serve(home, **config):
    app = create_app(PlatformConfig(home, keys=True, **config))
    _, secret = app.state.parts.keys.mint("test", LOCAL_TEAM, scopes=("admin",))
    return app.state.parts, httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app),
        base_url="http://platform",
        headers={"authorization": f"Bearer {secret}"},
    )


@pytest.fixture
async def server(tmp_path):
    platform, api = await serve(tmp_path / "home")
    async with platform.running(), api:
        yield api, platform


def source(tmp_path, **files):
    folder = tmp_path / "source"
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("_", ".")).write_text(content)
    return folder


def packed(folder):
    archive = io.BytesIO()
    pack(folder, archive)
    return archive.getvalue()


async def upload(api, archive):
    begun = (await api.post("/v2/builds/upload-url")).json()
    assert (await api.put(begun["upload_url"], content=archive)).status_code == 200
    return begun


async def finish(api, build_id, tries=600):
    for _ in range(tries):
        state = (await api.get(f"/v2/builds/{build_id}/status")).json()
        if state["status"] != "IN_PROGRESS":
            lines = (await api.get(f"/v2/builds/{build_id}/lines")).json()["items"]
            return state, [line["text"] for line in lines]
        await asyncio.sleep(0.1)
    raise AssertionError("the build does not end")


async def deploy(api, folder, **options):
    begun = await upload(api, packed(folder))
    body = {"source": "direct", "build_id": begun["build_id"], "name": "shop", **options}
    made = (await api.post("/v2/builds/trigger", json=body)).json()
    return await finish(api, made["id"])


@pytest.mark.slow
async def test_an_archive_cannot_be_changed_once_its_build_was_triggered(server, tmp_path):
    api, platform = server
    begun = await upload(api, packed(source(tmp_path, env_py=ENV)))
    body = {"build_id": begun["build_id"], "name": "shop"}
    assert (await api.post("/v2/builds/trigger", json=body)).status_code == 200
    assert (await api.put(begun["upload_url"], content=b"other")).status_code == 404
    state, _ = await finish(api, begun["build_id"])
    assert state["status"] == "SUCCEEDED"
    assert len(list((platform.config.home / "blobs/archives" / begun["build_id"]).iterdir())) == 1


@pytest.mark.parametrize(
    "given",
    [
        {"name": "a\ud800"},
        {"entry": "\0"},
        {"environment_variables": {"A": "\0"}},
        {"environment_variables": {"A=B": "x"}},
        {"build_args": {"": "x"}},
        {"build_secrets": {"A": "\ud800"}},
        {"project_id": "\ud800"},
        {"registry_id": "\0"},
        {"runtime_provider": "modal"},
    ],
)
async def test_what_no_build_can_be_given_is_refused_at_once(server, tmp_path, given):
    api, _ = server
    begun = await upload(api, packed(source(tmp_path, env_py=ENV)))
    body = json.dumps({"build_id": begun["build_id"], "name": "shop", **given})
    headers = {"content-type": "application/json"}
    answer = await api.post("/v2/builds/trigger", content=body, headers=headers)
    assert answer.status_code in (400, 404)
    assert (await api.get("/v2/registry")).json()["total"] == 0


async def test_an_upload_url_takes_no_odd_signature(server):
    api, _ = server
    begun = (await api.post("/v2/builds/upload-url")).json()
    params = {"token": "\x80.\x80"}
    answer = await api.put(f"/uploads/{begun['build_id']}", params=params, content=b"x")
    assert answer.status_code == 404


async def test_archives_have_a_largest_size(tmp_path):
    platform, api = await serve(tmp_path, builds=BuildLimits(archive_bytes=1000, files=2))
    async with platform.running(), api:
        begun = (await api.post("/v2/builds/upload-url")).json()
        assert (await api.put(begun["upload_url"], content=bytes(1001))).status_code == 413
        folder = source(tmp_path, env_py=ENV, a_txt="", b_txt="")
        state, _ = await deploy(api, folder)
        assert "more than 2 files" in state["error_message"]


@pytest.mark.slow
async def test_a_build_that_takes_too_long_ends_with_its_processes(tmp_path):
    platform, api = await serve(tmp_path / "home", builds=BuildLimits(seconds=4.0))
    mark = tmp_path / "pid"
    slow = f"import os, time\nopen({str(mark)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    async with platform.running(), api:
        state, _ = await deploy(api, source(tmp_path, env_py=slow))
    assert "took longer than" in state["error_message"]
    assert await gone(int(mark.read_text()))


def test_a_build_is_triggered_once(tmp_path):
    app = create_app(PlatformConfig(tmp_path))
    builds = Builds(app.state.parts.store, tmp_path)
    build_id = builds.begin(LOCAL_TEAM)
    builds.received(build_id, "archive")

    def trigger(_):
        given = {"registry_id": None, "project_id": None, "options": {}, "private": {}}
        try:
            return builds.trigger(LOCAL_TEAM, build_id, "x", **given)
        except HudError:
            return None

    with ThreadPoolExecutor(4) as threads:
        assert len([one for one in threads.map(trigger, range(4)) if one]) == 1
    (held,) = builds.take("a")
    builds.release("a", [held.id])
    (again,) = builds.take("b")
    assert again.lease.attempt == 1, "a server that stopped is no failed attempt"
    app.state.parts.close()


@pytest.mark.slow
async def test_a_source_that_talks_without_end_fills_nothing(server, tmp_path, monkeypatch):
    api, _ = server
    monkeypatch.setattr(build_log, "MOST_LINES", 30)
    loud = ENV + "\nfor n in range(200_000): print('line', n)\nraise ValueError('at last')\n"
    state, lines = await deploy(api, source(tmp_path, env_py=loud))
    assert "ValueError: at last" in state["error_message"]
    assert len(lines) < 40
    assert "at last" in lines[-1]


@pytest.mark.slow
async def test_what_an_environment_does_at_its_end_and_in_threads_is_nobody_s_concern(
    server, tmp_path
):
    api, _ = server
    odd = (
        ENV
        + "\nimport atexit, threading, time\natexit.register(print, 'bye')\n"
        + "threading.Thread(target=time.sleep, args=(600,)).start()\nprint('x' * 3_000_000)\n"
    )
    state, lines = await deploy(api, source(tmp_path, env_py=odd))
    assert state["status"] == "SUCCEEDED"
    assert lines[-1] == "It has 1 template."


@pytest.mark.slow
async def test_any_file_may_make_the_environment(server, tmp_path):
    api, platform = server
    folder = source(tmp_path, shop_py=ENV, tool_py="x = 1")
    state, _ = await deploy(api, folder)
    assert state["status"] == "SUCCEEDED"
    assert Environments(platform.store, LOCAL_TEAM).runnable("shop").source.name == "shop.py"
    (folder / "more.py").write_text(ENV.replace("shop", "bank"))
    state, _ = await deploy(api, folder, entry="more.py")
    assert Environments(platform.store, LOCAL_TEAM).runnable("shop").source.name == "more.py"
    state, _ = await deploy(api, folder, entry="../../../etc/passwd")
    assert "no file '../../../etc/passwd'" in state["error_message"]


@pytest.mark.slow
async def test_the_registry_s_spelling_of_a_name_finds_the_environment(server, tmp_path):
    api, _ = server
    two = ENV.replace("shop", "My Shop") + "\nother = Environment('bank')\n"
    state, _ = await deploy(api, source(tmp_path, env_py=two), name="my-shop")
    assert state["status"] == "SUCCEEDED"
    assert state["manifest"]["tasks"][0]["id"] == "buy"


@pytest.mark.slow
async def test_variables_stay_until_they_are_given_anew(server, tmp_path):
    api, platform = server
    folder = source(tmp_path, env_py=ENV)
    await deploy(api, folder, environment_variables={"A": "first", "B": "second"})
    leak = ENV + "\nimport os\nraise ValueError(os.environ['A'])\n"
    state, _ = await deploy(api, source(tmp_path, env_py=leak))
    assert "ValueError: •••" in state["error_message"]
    await deploy(
        api, source(tmp_path, env_py=ENV + "#"), environment_variables={"B": "third", "C": "x"}
    )
    found = Environments(platform.store, LOCAL_TEAM).runnable("shop")
    assert found.variables == {"A": "first", "B": "third", "C": "x"}
    assert os.stat(found.source.parent.parent / "variables.json").st_mode & 0o777 == 0o600


def wheel(path, name, needs=()):
    described = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path / f"{name}-1.0-py3-none-any.whl", "w") as file:
        file.writestr(f"{name}.py", "WORD = 'installed'\n")
        needed = "".join(f"Requires-Dist: {one}\n" for one in needs)
        file.writestr(
            f"{described}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needed}"
        )
        file.writestr(
            f"{described}/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        file.writestr(f"{described}/RECORD", "")


@pytest.mark.slow
async def test_requirements_are_installed_beside_the_server_s_own_hud(
    server, tmp_path, monkeypatch
):
    """Nothing is asked of an index: not for what the server has, nor for hud under its other names."""
    api, platform = server
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    folder = source(
        tmp_path,
        env_py="import little\nassert little.WORD == 'installed'\n" + ENV,
        requirements_txt="-r more.txt\nhud-python>=0.5\n",
        more_txt="./little-1.0-py3-none-any.whl  # ours\npydantic>=2\n",
    )
    wheel(folder, "little", needs=("hud-python>=0.5", "pydantic"))
    state, lines = await deploy(api, folder)
    assert state["status"] == "SUCCEEDED", lines
    found = Environments(platform.store, LOCAL_TEAM).runnable("shop")
    assert found.python.parts[-3:] == ("venv", "bin", "python")
    assert origin(found.python) == hud.__file__
    with pytest.raises(ModuleNotFoundError):
        __import__("little")


@pytest.mark.slow
async def test_a_requirement_that_is_nowhere_fails_with_the_installer_s_words(
    server, tmp_path, monkeypatch
):
    api, _ = server
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    folder = source(tmp_path, env_py=ENV, requirements_txt="no-such-thing-at-all==1\n")
    state, lines = await deploy(api, folder)
    assert state["status"] == "FAILED"
    assert state["error_message"].lower().startswith("error")
    assert any("no-such-thing-at-all" in line for line in lines)


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"requirements_txt": "a==1 \\\n  --hash=sha256:00\nhud_python\nHUD\nhudson\n"}, ["a==1    --hash=sha256:00", "hudson"]),
        ({"requirements_txt": "-r requirements.txt\nb # c\n"}, ["b"]),
        ({"requirements_txt": "hud @ git+https://x/y\nhud-python[agents]; python_version>'3'\nx#egg=1\n"}, ["x#egg=1"]),
        ({"pyproject_toml": "[project]\nname='a'\n"}, []),
        ({"pyproject_toml": "[tool.x]\n"}, []),
        ({}, []),
    ],
)  # fmt: skip
def test_what_is_asked_for(tmp_path, files, found):
    assert requirements(source(tmp_path, x_txt="", **files)) == found


@pytest.mark.parametrize(
    "files",
    [
        {"requirements_txt": "-r ../../../etc/passwd\n"},
        {"requirements_txt": "--requirement=/etc/passwd\n"},
        {"requirements_txt": "-c ../x\n"},
        {"requirements_txt": "-r none.txt\n"},
        {"pyproject_toml": "[project\n"},
        {"pyproject_toml": "[project]\ndependencies = 3\n"},
    ],
)
def test_requirements_that_lead_out_or_cannot_be_read(tmp_path, files):
    with pytest.raises(UsageError):
        requirements(source(tmp_path, **files))


def origin(python):
    command = [python, "-c", "import hud; print(hud.__file__)"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


async def gone(pid):
    for _ in range(100):
        if process_started(pid) is None:
            return True
        await asyncio.sleep(0.05)
    return False


def start(home, port_file):
    variables = {**os.environ, "HUD_HOME": str(home), "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "hud.cli.main", "up", "--port", "0"],
        env=variables,
        stdout=port_file.open("w"),
        stderr=subprocess.STDOUT,
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        for line in port_file.read_text().splitlines():
            if "HUD_API_URL" in line:
                return process, line.split("=", 1)[1].strip().strip("'\"")
        time.sleep(0.1)
    raise AssertionError(port_file.read_text())


@pytest.mark.slow
async def test_kill_9_during_a_build_loses_nothing_and_leaves_nobody_behind(tmp_path):
    home = tmp_path / "home"
    setup = create_app(PlatformConfig(home, keys=True)).state.parts
    _, key = setup.keys.mint("test", LOCAL_TEAM, scopes=("admin",))
    setup.close()
    mark, free = tmp_path / "pid", tmp_path / "free"
    slow = (
        f"import os, time\nopen({str(mark)!r}, 'w').write(str(os.getpid()))\n"
        f"while not os.path.exists({str(free)!r}): time.sleep(0.05)\n"
    ) + ENV
    headers = {"authorization": f"Bearer {key}"}
    process, url = start(home, tmp_path / "one.txt")
    try:
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=30) as api:
            begun = await upload(api, packed(source(tmp_path, env_py=slow)))
            body = {
                "build_id": begun["build_id"],
                "name": "shop",
                "environment_variables": {"A": "kept"},
            }
            made = (await api.post("/v2/builds/trigger", json=body)).json()
            for _ in range(300):
                if mark.exists() and mark.read_text():
                    break
                await asyncio.sleep(0.1)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert await gone(int(mark.read_text())), "the build's process outlived its server"
        free.touch()
        process, url = start(home, tmp_path / "two.txt")
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=30) as api:
            state, _ = await finish(api, made["id"])
            assert (state["status"], state["version"]) == ("SUCCEEDED", "1"), json.dumps(state)
            found = (await api.get("/v2/registry/shop")).json()
            assert found["latest_build"]["version"] == "1"
    finally:
        process.kill()
        process.wait()


UV = """#!{python}
import pathlib, subprocess, sys
with pathlib.Path({calls!r}).open("a") as file:
    print(*sys.argv[1:], file=file)
at = sys.argv.index("--python") + 1
if sys.argv[1] == "venv":
    sys.exit(subprocess.call([sys.argv[at], "-m", "venv", "--without-pip", sys.argv[-1]]))
sys.exit(subprocess.call([{python!r}, "-m", "pip", "--python", sys.argv[at], "install", *sys.argv[at + 1:]]))
"""


@pytest.mark.slow
async def test_uv_is_used_where_there_is_one_and_told_what_the_server_has(
    server, tmp_path, monkeypatch
):
    api, platform = server
    place, calls = tmp_path / "bin", tmp_path / "calls"
    place.mkdir()
    (place / "uv").write_text(UV.format(python=sys.executable, calls=str(calls)))
    (place / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}:/usr/bin:/bin")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    text = "./little-1.0-py3-none-any.whl\npydantic>=2\n"
    folder = source(tmp_path, env_py="import little, pydantic\n" + ENV, requirements_txt=text)
    wheel(folder, "little")
    state, lines = await deploy(api, folder)
    assert state["status"] == "SUCCEEDED", lines
    assert [line.split()[0] for line in calls.read_text().splitlines()] == ["venv", "pip"]
    found = Environments(platform.store, LOCAL_TEAM).runnable("shop")
    packages = next((found.python.parents[1] / "lib").glob("python*")) / "site-packages"
    # uv looks no further than the environment itself.
    assert list(packages.glob("pydantic-*.dist-info/METADATA"))
    assert list(packages.glob("hud_python-*.dist-info/METADATA"))


def frames(client, build_id, key):
    with client.websocket_connect(f"/v2/builds/{build_id}/logs?api_key={key}") as socket:
        found = []
        while not found or found[-1]["type"] != "complete":
            found.append(socket.receive_json())
        with pytest.raises(WebSocketDisconnect) as closed:
            socket.receive_json()
        assert closed.value.code == 1000
        return found


@pytest.mark.slow
def test_a_log_is_told_from_its_beginning_to_whoever_may_hear_it(tmp_path):
    app = create_app(PlatformConfig(tmp_path / "home", keys=True))
    keys = app.state.parts.keys
    _, key = keys.mint("test", LOCAL_TEAM, scopes=("admin",))
    _, other = keys.mint("other", new_id(), scopes=("admin",))
    with TestClient(app, headers={"authorization": f"Bearer {key}"}) as client:
        begun = client.post("/v2/builds/upload-url").json()
        archive = packed(source(tmp_path, env_py=ENV))
        client.put(begun["upload_url"].replace("http://testserver", ""), content=archive)
        body = {"build_id": begun["build_id"], "name": "shop"}
        made = client.post("/v2/builds/trigger", json=body).json()
        during = frames(client, made["id"], key)
        late = frames(client, made["id"], key)
        for told in (during, late):
            logs = [frame for frame in told if frame["type"] == "log"]
            assert logs[0]["message"] == "Unpacked 1 files."
            assert all(isinstance(frame["timestamp"], int) for frame in logs)
            assert told[-1]["final_status"] == "SUCCEEDED"
            assert isinstance(told[-1]["message"], str)
        assert [f["message"] for f in during if f["type"] == "log"] == [
            f["message"] for f in late if f["type"] == "log"
        ]
        for build_id, secret in ((made["id"], other), (new_id(), key), (made["id"], "hud_no")):
            with (
                pytest.raises(WebSocketDisconnect) as refused,
                client.websocket_connect(
                    f"/v2/builds/{build_id}/logs?api_key={secret}",
                    headers={"authorization": ""},
                ) as socket,
            ):
                socket.receive_json()
            assert refused.value.code == 4003
