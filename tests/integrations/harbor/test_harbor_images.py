"""Harbor's tasks are played in the images of their Dockerfiles."""

import pytest
from tests.container_engines import require_engine
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
from hud.errors import UsageError
from hud_integrations.containers import add_image
from hud_integrations.containers.dockerfiles.instructions import base_references
from hud_integrations.harbor import HarborEnvironment, import_folder
from hud_integrations.harbor.task_folder import read_folder

DOCKERFILE = """FROM box:1
ARG MARK=made
ENV WORD=hello PATH=/bin:/usr/bin
WORKDIR /srv/game
COPY notes.txt .
RUN echo "$WORD $MARK" > built.txt
USER player
"""
TOOLS = [*PROGRAMS, "/bin/bash", "/bin/cp"]
ACCOUNTS = b"root:x:0:0::/root:/bin/sh\nplayer:x:7:7::/srv:/bin/sh\n"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))


@pytest.fixture
def box(tmp_path):
    """A base image box:1."""
    layer = [*programs(TOOLS), member("etc"), member("etc/passwd", ACCOUNTS)]
    add_image(write_layout(tmp_path / "box", [layer]), "box:1")


async def look(run):
    shell = await run.open("ssh")
    done = await shell.run("pwd; cat notes.txt built.txt; id -u; ls /tests /usr/lib/python3", timeout=20)  # fmt: skip
    return done.stdout


@pytest.mark.slow
@needs_bubblewrap
async def test_a_dockerfile_whose_base_is_named_is_built_and_played(tmp_path, box):
    write_task(tmp_path / "in", "greet", dockerfile=DOCKERFILE)
    _, left_out = import_folder(tmp_path / "in", tmp_path / "out")
    assert left_out == []
    tasks = Taskset.from_file(tmp_path / "out")
    oracle = await tasks.run(ScriptedAgent(tasks[0].environment.oracle))
    assert [run.reward for run in oracle.runs] == [1.0], oracle.runs[0].trace.error
    run = (await tasks.run(ScriptedAgent(look))).runs[0]
    assert run.reward == 0.0
    assert run.trace.content.split() == ["/srv/game", "a", "note", "hello", "made", "7", "/tests:"]


@pytest.mark.slow
@needs_bubblewrap
async def test_a_ready_made_image_takes_the_place_of_the_dockerfile(tmp_path, box):
    settings = 'docker_image = "box:1"\nworkdir = "/data"\ncpus = 1'
    write_task(tmp_path / "in", "greet", environment=settings)
    env = HarborEnvironment(tmp_path / "in", images=True)
    job = await Taskset("greet", env.all_tasks()).run(ScriptedAgent(env.oracle))
    assert job.reward == 1.0, job.runs[0].trace.error


@pytest.mark.slow
@needs_bubblewrap
async def test_a_dockerfile_of_several_stages_is_built_by_docker_or_podman(tmp_path):
    require_engine()
    text = "FROM scratch AS first\nCOPY root/ /\nRUN echo made > /made\nFROM first\nCOPY --from=first /made /app/\n"
    write_task(tmp_path / "in", "greet", dockerfile=text + "WORKDIR /app\nCOPY notes.txt .\n")
    for info, content in programs(TOOLS):
        path = tmp_path / "in/greet/environment/root" / info.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o755)
    env = HarborEnvironment(tmp_path / "in", images=True)
    job = await Taskset("greet", env.all_tasks()).run(ScriptedAgent(env.oracle))
    assert job.reward == 1.0, job.runs[0].trace.error


def test_tasks_of_different_images_are_sorted_and_a_missing_base_is_named(tmp_path, box):
    write_task(tmp_path / "in", "greet", dockerfile=DOCKERFILE)
    write_task(tmp_path / "in", "other", dockerfile="FROM box:1\nWORKDIR /srv/game\n")
    write_task(tmp_path / "in", "plain", dockerfile="FROM elsewhere:1\nWORKDIR /srv/game\n")
    written, left_out = import_folder(tmp_path / "in", tmp_path / "out")
    assert len(written) == 3
    assert [(omission.task, omission.part) for omission in left_out] == [
        ("plain", "Dockerfile: FROM elsewhere:1 (the sandbox has this machine's programs)")
    ]
    with pytest.raises(UsageError, match="one image"):
        HarborEnvironment(tmp_path / "in", images=True)
    with pytest.raises(UsageError, match="FROM elsewhere:1"):
        HarborEnvironment(tmp_path / "in" / "plain", images=True)


def test_settings_that_a_workspace_in_an_image_lacks_are_named(tmp_path):
    settings = 'storage_mb = 10\nworkdir = "/"'
    write_task(tmp_path, "odd", environment=settings)
    task = read_folder(tmp_path / "odd", "odd", images=True)
    assert task.lost == [
        "environment.storage_mb",
        "the working directory / (it is the image's)",
    ]


def test_bases_are_those_of_all_stages():
    text = "ARG A=x:1\nFROM $A AS first\nFROM --platform=x y:2\nFROM first\nFROM scratch\nFROM $B\n"
    assert base_references(text) == ["x:1", "y:2"]
