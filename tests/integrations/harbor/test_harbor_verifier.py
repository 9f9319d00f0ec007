"""A verifier in a container of its own is given the artifacts of the agent, and nothing else of it."""

import asyncio
import io
import os
import tarfile

import pytest
from tests.container_engines import imported_image, require_engine
from tests.integrations.containers.image_layouts import (
    PROGRAMS,
    member,
    needs_bubblewrap,
    programs,
    write_layout,
)
from tests.integrations.harbor.harbor_folders import write_task

from hud import Taskset
from hud.agents import ScriptedAgent
from hud_integrations.containers import add_image
from hud_integrations.harbor import HarborEnvironment, import_folder
from hud_integrations.harbor.task_folder import read_folder
from hud_integrations.harbor.verifier.artifacts import _copy_checked

TOOLS = [*PROGRAMS, "/bin/bash", "/bin/cp", "/bin/ln", "/bin/sleep", "/bin/chmod"]
BOX = "hud-tests/verified:1"
SEPARATE = '[verifier.environment]\nnetwork_mode = "no-network"\nenv = { KEY = "secret" }'
TEST = """#!/bin/bash
cat /logs/artifacts/* kept/* > all.txt 2>/dev/null; ls -A / /app /tests; cat all.txt
if [ "$(cat greeting.txt)" = "$(cat /tests/wanted.txt)" ] && [ "$KEY" = secret ]; then echo 1 > /logs/verifier/reward.txt
else echo 0 > /logs/verifier/reward.txt; fi
"""


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))


def members():
    return [*programs(TOOLS), member("etc"), member("root")]


@pytest.fixture(params=[pytest.param("images", marks=needs_bubblewrap), "engine"])
def how(request, tmp_path):
    """The option with which an environment plays images; their base is stored."""
    if request.param == "engine":
        require_engine()
        imported_image(BOX, members())
    else:
        add_image(write_layout(tmp_path / "box", [members()]), BOX)
    return {request.param: True}


def write(root, *, artifacts='["/app/greeting.txt"]', settings=SEPARATE, test=TEST):
    write_task(root, "greet", dockerfile=f"FROM {BOX}\nWORKDIR /app\n", environment=settings, test=test)  # fmt: skip
    folder = root / "greet"
    (folder / "tests/Dockerfile").write_text(f"FROM {BOX}\nCOPY test.sh wanted.txt /tests/\n")
    toml = folder / "task.toml"
    toml.write_text(f"artifacts = {artifacts}\n{toml.read_text()}")
    return folder


async def played(root, how, agent=None):
    env = HarborEnvironment(root, **how)
    job = await Taskset("greet", env.all_tasks()).run(ScriptedAgent(agent or env.oracle))
    return job.runs[0]


@pytest.mark.slow
async def test_the_tests_see_the_artifacts_alone(tmp_path, how):
    hook = '[[verifier.collect]]\ncommand = "mkdir -p /logs/artifacts; cat mark.txt > /logs/artifacts/note"\n'
    artifacts = (
        '["/app/greeting.txt", { source = "/app/kept", exclude = ["*.log"] }, "/app/missing"]'
    )
    write(tmp_path / "in", settings=f"{SEPARATE}\n{hook}", artifacts=artifacts)
    assert (await played(tmp_path / "in", how)).reward == 1.0

    async def agent(run):
        shell = await run.open("ssh")
        done = await shell.run("ls /tests; mkdir kept; echo in > kept/a; echo out > kept/b.log; echo mark > mark.txt; echo $KEY; ln -s /tests kept/link; echo hello > greeting.txt")  # fmt: skip
        return done.stdout

    run = await played(tmp_path / "in", how, agent)
    assert run.reward == 1.0, run.trace.error
    assert "secret" not in run.trace.content
    seen = run.evaluation["info"]["stdout"].split()
    assert "mark" in seen
    assert "in" in seen
    assert not {"out", "mark.txt", "solution"} & set(seen)

    async def nothing(run):
        return "done"

    assert (await played(tmp_path / "in", how, nothing)).reward == 0.0


@pytest.mark.slow
async def test_tests_that_the_artifacts_hold_up_are_the_agent_s_failure(tmp_path, how):
    test = TEST.replace("cat /logs", "[ -e greeting.txt ] && sleep 600; cat /logs", 1)
    folder = write(tmp_path / "in", test=test)
    toml = folder / "task.toml"
    toml.write_text(toml.read_text().replace("timeout_sec = 60.0", "timeout_sec = 3.0"))
    run = await played(tmp_path / "in", how)
    assert run.reward == 0.0
    assert "on the agent's artifacts" in run.trace.error


LINKS = {
    "to the expected answer": "ln -s /tests/wanted.txt greeting.txt",
    "upwards": "ln -s ../tests/wanted.txt greeting.txt",
    "through a link to its folder": "ln -s /tests kept; ln -s kept/wanted.txt greeting.txt",
    "through another artifact": "ln -s /tests/wanted.txt /logs/artifacts/w; ln -s /logs/artifacts/w greeting.txt",
    "through what is not there yet": "mkdir kept; ln -s kept/new/../../../tests/wanted.txt greeting.txt",
    "in a folder that is closed": "ln -s kept/sub/w greeting.txt; mkdir -p kept/sub; ln -s /tests/wanted.txt kept/sub/w; "
    "chmod 000 kept/sub; chmod 000 kept",
    "for an artifact's folder": "rm -r kept; ln -s /tests kept; ln -s kept/wanted.txt greeting.txt",
    "to a file of the tests": "ln -s /proc/self/fd/7 greeting.txt",
    "to the tests' reward": "ln -s /logs/verifier/reward.txt greeting.txt",
}


@pytest.mark.slow
async def test_no_link_among_the_artifacts_leads_to_the_tests(tmp_path, how):
    test = """#!/bin/bash
exec 7< /tests/wanted.txt
chmod -R u+rwX /app
mkdir -p kept/new
if [ "$(cat greeting.txt)" = "$(cat /tests/wanted.txt)" ]; then echo 1 > /logs/verifier/reward.txt
else echo 0 > /logs/verifier/reward.txt; fi
"""
    artifacts = '["/app/greeting.txt", "/app/kept", "/app/kept/sub"]'
    write(tmp_path / "in", artifacts=artifacts, test=test)

    def linking(command):
        async def agent(run):
            done = await (await run.open("ssh")).run(f"mkdir -p /logs/artifacts; {command}")
            return done.stderr

        return agent

    for name, mischief in LINKS.items():
        run = await played(tmp_path / "in", how, linking(mischief))
        assert (run.reward, run.failure_kind) == (0.0, None), (name, run.trace.error)
    for honest in (
        "mkdir kept; echo hello > kept/a; ln -s kept/a greeting.txt",
        "echo hello > /logs/artifacts/a; ln -s /logs/artifacts/a greeting.txt",
        "mkdir kept; ln -s ../greeting.txt kept/here; ln -s /tests kept/t; echo hello > greeting.txt",
    ):
        assert (await played(tmp_path / "in", how, linking(honest))).reward == 1.0, honest


def archive(*entries):
    """Return an archive of names with contents, or with the targets of links."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as packed:
        for name, kind, content in entries:
            info = tarfile.TarInfo(name)
            info.type, info.mode = kind, 0o4755
            if kind == tarfile.SYMTYPE:
                info.linkname = content
            else:
                info.size = len(content)
            packed.addfile(info, io.BytesIO(content if kind == tarfile.REGTYPE else b""))
    return stream.getvalue()


async def checked(data, most=1 << 20):
    """Return the problem of an archive, and the names that it was copied with."""
    reading, feeding = os.pipe()
    draining, writing = os.pipe()

    def feed():
        with os.fdopen(feeding, "wb") as pipe:
            pipe.write(data)

    def drain():
        with os.fdopen(draining, "rb") as pipe:
            return pipe.read()

    copied, _, problem = await asyncio.gather(
        asyncio.to_thread(drain),
        asyncio.to_thread(feed),
        asyncio.to_thread(_copy_checked, reading, writing, "app/out", most, set()),
    )
    with tarfile.open(fileobj=io.BytesIO(copied)) as read:
        return problem, [(member.name, member.mode) for member in read]


FILE, LINK = tarfile.REGTYPE, tarfile.SYMTYPE


@pytest.mark.parametrize(
    "entries",
    [
        [("tests/test.sh", FILE, b"echo 1")],
        [("app/out/../../tests/test.sh", FILE, b"echo 1")],
        [("/tests/test.sh", FILE, b"echo 1")],
        [("app/out", LINK, "/tests"), ("app/out/test.sh", FILE, b"echo 1")],
        [("app/out/x", LINK, "/tests"), ("app/out/x/test.sh", FILE, b"echo 1")],
        [("app/out/x", LINK, "/tests/test.sh"), ("app/out/x", FILE, b"echo 1")],
    ],
)
async def test_an_archive_that_leads_elsewhere_is_refused(entries):
    problem, names = await checked(archive(*entries))
    assert problem == "its archive is malformed"
    assert [name for name, _ in names if name.endswith("test.sh")] == []


async def test_files_lose_their_rights_and_devices_are_left_out():
    data = archive(("app/out", FILE, b"1"), ("app/out", tarfile.CHRTYPE, b""))
    assert await checked(data) == (None, [("app/out", 0o755)])
    assert (await checked(archive(("app/out", FILE, bytes(2000))), most=1000))[
        0
    ] == "it does not fit"
    assert (await checked(b"no archive" * 200))[0] == "its archive is malformed"


@pytest.mark.parametrize(
    ("settings", "dockerfile", "reason"),
    [
        ("", None, " without tests/Dockerfile"),
        ("gpus = 1", f"FROM {BOX}\n", " with GPUs"),
        ('[[verifier.collect]]\ncommand = "x"\nservice = "db"', f"FROM {BOX}\n", " that collects from another service"),
    ],
)  # fmt: skip
def test_what_such_a_verifier_cannot_have_is_refused_by_name(tmp_path, settings, dockerfile, reason):  # fmt: skip
    folder = write(tmp_path, settings=f"{SEPARATE}\n{settings}")
    if dockerfile is None:
        (folder / "tests/Dockerfile").unlink()
    assert read_folder(folder, "greet", True).refused == [
        f"a verifier in a container of its own{reason}"
    ]
    assert read_folder(folder, "greet", False).refused == ["a verifier in a container of its own"]


@needs_bubblewrap
def test_such_a_task_is_imported_where_both_bases_are_named(tmp_path):
    add_image(write_layout(tmp_path / "box", [members()]), BOX)
    folder = write(tmp_path / "in")
    _, left_out = import_folder(tmp_path / "in", tmp_path / "out")
    assert left_out == []
    (folder / "tests/Dockerfile").write_text("FROM unknown:1\n")
    assert read_folder(folder, "greet", None).refused == [
        "a verifier in a container of its own, whose base add_image has not named"
    ]
