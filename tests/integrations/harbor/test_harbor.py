"""Harbor's task folders are played here, and tasks of ours become such folders."""

import json
import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from tests.integrations.harbor.harbor_folders import write_task

pytest.importorskip("asyncssh", reason="pip install 'openhud[environments]'")

from hud import Environment, Taskset
from hud.agents import ScriptedAgent
from hud.cli.main import run as run_hud
from hud.errors import GraderFault, UsageError
from hud.trace import AgentStep, Sample, ToolCall, Trace
from hud.trace.steps import Usage
from hud_integrations.harbor import (
    HarborEnvironment,
    atif_trajectory,
    export_tasks,
    import_folder,
    wheel,
)
from hud_integrations.harbor.environment import parse_rewards, reward_of
from hud_integrations.harbor.task_folder import read_folder, read_folders

SOURCE = Path(__file__).parents[3]


LINKS = ["instruction.md", "environment/notes.txt", "tests", "tests/data", "solution/right.txt"]


@pytest.mark.parametrize("absolute", [True, False], ids=["absolute", "relative"])
@pytest.mark.parametrize("link", LINKS)
def test_a_link_out_of_its_folder_is_neither_read_nor_copied(tmp_path, link, absolute):
    """Its target would be a prompt, or a file of the sandbox: sent to a provider, or to any host."""
    secret = tmp_path / "secret"
    write_task(secret, "kept")
    (secret / "text").write_text("sesame")
    write_task(tmp_path / "in", "greet")
    place = tmp_path / "in" / "greet" / link
    target = secret / "kept" / "tests" if link.startswith("tests") else secret / "text"
    shutil.rmtree(place, ignore_errors=True)
    place.unlink(missing_ok=True)
    place.symlink_to(target if absolute else os.path.relpath(target, place.parent))
    (task,) = read_folders(tmp_path / "in")
    assert "sesame" not in task.instruction
    assert any(link in part for part in task.refused)
    with pytest.raises(UsageError, match="leads out of its folder"):
        import_folder(tmp_path / "in", tmp_path / "out")


def test_a_link_inside_of_its_folder_is_kept(tmp_path):
    write_task(tmp_path / "in", "greet")
    (tmp_path / "in/greet/tests/again.txt").symlink_to("wanted.txt")
    assert import_folder(tmp_path / "in", tmp_path / "out")[0] == {tmp_path / "out": 1}
    assert (tmp_path / "out/tasks/greet/tests/again.txt").read_text() == "hello\n"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))


def agent(command):
    async def play(run):
        shell = await run.open("ssh")
        return (await shell.run(command, timeout=20)).stdout

    return ScriptedAgent(play)


async def played(task, player):
    return (await task.run(player)).runs[0]


@pytest.mark.slow
async def test_tasks_are_played_in_a_workspace_and_graded_by_their_own_tests(tmp_path):
    write_task(tmp_path / "in", "greet")
    write_task(tmp_path / "in", "part", wanted="bye")
    written, left_out = import_folder(tmp_path / "in", tmp_path / "out")
    assert written == {tmp_path / "out": 2}
    assert {one.part for one in left_out} == {
        "Dockerfile: FROM ubuntu:24.04 (the sandbox has this machine's programs)"
    }
    tasks = Taskset.from_file(tmp_path / "out")
    assert [task.slug for task in tasks] == ["greet", "part"]
    assert tasks["greet"].runtime_config == {"limits": {"run_timeout_s": 300.0}}
    oracle = await tasks.run(ScriptedAgent(tasks[0].environment.oracle))
    assert [run.reward for run in oracle.runs] == [1.0, 1.0]
    wrong = await played(
        tasks["greet"], agent("pwd; ls; ls /tests /solution; echo bye > greeting.txt")
    )
    assert wrong.prompt == "Write hello to greeting.txt."
    assert wrong.reward == 0.0
    assert wrong.trace.content.split() == ["/app", "notes.txt", "/solution:", "/tests:"], (
        "neither tests nor solutions are there while the agent works"
    )


@pytest.mark.slow
async def test_named_rewards_and_missing_ones(tmp_path):
    json_test = 'echo \'{"speed": 0.5, "style": 1}\' > /logs/verifier/reward.json\n'
    write_task(tmp_path, "named", test=json_test)
    write_task(tmp_path, "none", test="exit 3\n")
    environment = HarborEnvironment(tmp_path)
    named, none = environment.all_tasks()
    run = await played(named, agent("true"))
    assert run.reward == 0.75
    assert run.grade.info["rewards"] == {"speed": 0.5, "style": 1.0}
    run = await played(none, agent("true"))
    assert (run.reward, run.failure_kind) == (0.0, "agent")
    run = await played(none, ScriptedAgent(_nothing))
    assert run.reward is None, "without an agent at work, the tests are at fault"


async def _nothing(run):
    return ""


@pytest.mark.parametrize(
    ("name", "content", "reward"),
    [
        ("reward.txt", b" 0.25\n", 0.25),
        ("reward.json", b"0.5", 0.5),
        ("reward.json", b'{"reward": 1, "other": 0}', 1.0),
        ("reward.txt", b"", None),
        ("reward.txt", b"nan", None),
        ("reward.json", b'{"a": true}', None),
        ("reward.json", b"{}", None),
        ("reward.json", b"1" * 400, None),
        ("reward.json", b"[" * 100_000, None),
    ],
)
def test_files_of_rewards(name, content, reward):
    if reward is None:
        with pytest.raises(GraderFault, match=name):
            parse_rewards(name, content)
    else:
        assert reward_of(parse_rewards(name, content)) == reward


DOCKERFILE = """FROM python:3.12 AS base
# a comment
WORKDIR /srv
WORKDIR game
ENV LEVEL=3 NAME="two words"
ENV PATH=/opt/bin:$PATH
COPY --chown=me:me notes.txt /srv/game/docs/
COPY . all
RUN apt-get update \\
    && apt-get install -y cowsay
COPY --from=base /x /y
ADD https://example.org/x.tar /x
USER me
ENTRYPOINT ["/start"]
"""


def test_what_has_no_counterpart_is_named(tmp_path):
    settings = 'cpus = 2\nenv = { KEY = "${SECRET}", PLAIN = "1" }'
    write_task(tmp_path, "odd", environment=settings, dockerfile=DOCKERFILE)
    task = read_folder(tmp_path / "odd", "odd")
    assert task.workdir == "/srv/game"
    assert task.variables == {"LEVEL": "3", "NAME": "two words", "PLAIN": "1"}
    assert [(copied.source.name, copied.target) for copied in task.copies] == [
        ("notes.txt", "/srv/game/docs/notes.txt"),
        ("environment", "/srv/game/all"),
    ]
    assert task.lost == [
        "environment.env.KEY",
        "Dockerfile: FROM python:3.12 AS base (the sandbox has this machine's programs)",
        "Dockerfile: ENV PATH",
        "Dockerfile: RUN apt-get update && apt-get install -y cowsay",
        "Dockerfile: COPY --from=base /x /y",
        "Dockerfile: ADD https://example.org/x.tar /x",
        "Dockerfile: USER me",
        'Dockerfile: ENTRYPOINT ["/start"]',
    ]
    assert task.refused == []
    assert task.cpus == 2.0


def test_tasks_that_cannot_be_played_are_left_out_by_name(tmp_path, capsys):
    write_task(tmp_path / "in", "fine")
    write_task(tmp_path / "in", "gpu", environment="gpus = 1")
    write_task(tmp_path / "in", "elsewhere", dockerfile="FROM scratch\nWORKDIR /work\n")
    write_task(tmp_path / "in", "linked")
    (tmp_path / "in" / "linked" / "environment" / "secret").symlink_to("/etc/passwd")
    assert run_hud(["import", str(tmp_path / "in"), "-o", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "left out: gpu: environment.gpus\n" in said
    assert "left out: linked: the link environment/secret, which leads out of its folder\n" in said
    folders = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert folders == ["1-work", "2-app"], "a folder for each kind of sandbox"
    assert run_hud(["import", str(tmp_path / "in"), "-o", str(tmp_path / "out")]) == 2
    assert "exists; name a new folder" in capsys.readouterr().err
    assert run_hud(["import", str(tmp_path / "home"), "-o", "x"]) == 2
    assert run_hud(["import", str(tmp_path / "in" / "gpu"), "-o", str(tmp_path / "one")]) == 2
    assert "can be played in a workspace: environment.gpus." in capsys.readouterr().err
    assert not (tmp_path / "one").exists()
    (tmp_path / "in" / "fine" / "task.toml").write_text("[")
    with pytest.raises(UsageError, match="not valid TOML"):
        read_folders(tmp_path / "in")


ENV = '''
from words import WANTED
from hud import Environment

env = Environment("words")
tooled = Environment("tooled")


@env.template()
async def say(word: str):
    answer = yield f"Say {word}."
    yield 1.0 if answer == WANTED[word] else 0.25


@tooled.tool
def look() -> str:
    """Look."""
    return "nothing"


@tooled.template()
async def see():
    yield "Look."
    yield 1.0


tasks = [say(word="a"), see()]
'''


@pytest.mark.slow
def test_tasks_of_ours_become_folders_whose_test_is_our_grader(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "env.py").write_text(ENV)
    (source / "words.py").write_text('WANTED = {"a": "b"}\n')
    (source / ".env").write_text("KEY=secret")
    tasks = Taskset.from_file(source)
    written, left_out = export_tasks(tasks, tmp_path / "out")
    assert written == 1
    assert [(one.task, one.part) for one in left_out] == [
        ("see", "its environment has tools (look)")
    ]
    (folder,) = (tmp_path / "out").iterdir()
    task = read_folder(folder, "say")
    assert task.instruction == "Say a.\n\nWrite your answer to `/app/answer.txt`."
    assert not (folder / "tests" / "source" / ".env").exists()
    for answer, reward in (("b\n", 1.0), ("c", 0.25), (None, 0.25)):
        assert reward_in_container(folder, tmp_path / "container", answer) == reward


@pytest.mark.slow
def test_the_image_installs_the_package_that_wrote_it(tmp_path):
    """No index has a release: the build context holds what the Dockerfile installs."""
    (tmp_path / "env.py").write_text(ENV.replace("tasks = [", 'tasks = [say(word="c"), '))
    (tmp_path / "words.py").write_text('WANTED = {"a": "b", "c": "d"}\n')
    assert export_tasks(Taskset.from_file(tmp_path / "env.py"), tmp_path / "out")[0] == 2
    for folder in (tmp_path / "out").iterdir():
        image = folder / "environment"
        (wheel,) = image.glob("*.whl")
        lines = (image / "Dockerfile").read_text().splitlines()
        assert lines[1:3] == [
            f"COPY {wheel.name} /tmp/",
            f"RUN pip install --no-cache-dir /tmp/{wheel.name}",
        ]
    target = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target"]
    subprocess.run([*pip, target, wheel], check=True)
    script = "import hud.environment; print(hud.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(target)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(done.stdout.strip()).parent == target / "hud"
    (description,) = target.glob("openhud-*.dist-info/METADATA")
    assert "Requires-Dist: pydantic>=2.7\n" in description.read_text()


def test_a_source_tree_without_metadata_names_its_requirements(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    lines = wheel._metadata().splitlines()
    assert "Requires-Dist: pydantic>=2.7" in lines
    assert 'Requires-Dist: ray>=2.58; extra == "ray"' in lines


def reward_in_container(folder, container, answer):
    """Return what a task's test writes where its folders are those of Harbor's containers."""
    shutil.rmtree(container, ignore_errors=True)
    for name in ("app", "logs"):
        (container / name).mkdir(parents=True)
    if answer is not None:
        (container / "app" / "answer.txt").write_text(answer)
    mounts = ["--tmpfs", "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    programs = ("/usr", "/bin", "/lib", "/lib64", "/etc", sys.prefix, sys.base_prefix, str(SOURCE))
    for path in (*programs, *filter(os.path.isdir, sys.path)):
        mounts += ["--ro-bind-try", path, path]
    mounts += [
        "--ro-bind",
        str(folder / "tests"),
        "/tests",
        "--bind",
        str(container / "app"),
        "/app",
    ]
    mounts += ["--bind", str(container / "logs"), "/logs", "--chdir", "/app"]
    path = f"{sys.prefix}/bin:/usr/bin:/bin"
    python = {"PATH": path, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        ["bwrap", *mounts, "bash", "/tests/test.sh"], env=python, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return float((container / "logs" / "verifier" / "reward.txt").read_text())


@pytest.mark.slow
def test_imported_tasks_are_exported_as_they_were(tmp_path):
    write_task(tmp_path / "in", "greet")
    import_folder(tmp_path / "in", tmp_path / "hud")
    written, left_out = export_tasks(Taskset.from_file(tmp_path / "hud"), tmp_path / "back")
    assert (written, left_out) == (1, [])
    before, after = (
        {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        for root in (tmp_path / "in", tmp_path / "back")
    )
    assert before == after


TRAJECTORY = {
    "schema_version": str,
    "session_id": str,
    "agent": dict,
    "steps": list,
    "final_metrics": dict,
    "extra": dict,
}


@pytest.mark.slow
def test_runs_become_trajectories_of_atif(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "letters.py").write_text((SOURCE / "tests/integrations/letters.py").read_text())
    (tmp_path / "speller.py").write_text(
        "from hud.trace import ToolCall\n\n\nasync def agent(run):\n"
        "    call = ToolCall(id='1', name='spell', arguments={'word': 'red'})\n"
        "    return (await run.call_tool(call)).text\n"
    )
    assert run_hud(["eval", "letters.py", "speller.py"]) == 0
    assert run_hud(["export", "latest", "--to", "atif", "-o", "out"]) == 0
    (folder,) = (tmp_path / "out").iterdir()
    found = json.loads((folder / "trajectory.json").read_text())
    assert {name: type(value) for name, value in found.items()} == TRAJECTORY
    assert found["session_id"] == folder.name
    assert found["extra"]["reward"] == 0.8
    prompt, call, answer = found["steps"]
    assert [step["step_id"] for step in found["steps"]] == [1, 2, 3]
    assert (prompt["source"], prompt["message"]) == ("user", "Write red with different letters.")
    assert call["tool_calls"] == [
        {"tool_call_id": "1", "function_name": "spell", "arguments": {"word": "red"}}
    ]
    assert call["observation"] == {"results": [{"source_call_id": "1", "content": "r e d"}]}
    assert answer["message"] == "r e d"


def test_a_models_turn_keeps_its_tokens():
    step = AgentStep(
        content="hi",
        tool_calls=[
            ToolCall(id="1", name="x", arguments={"a": None}),
            ToolCall(id="2", name="x", arguments="["),
        ],
        usage=Usage(prompt_tokens=2, completion_tokens=1),
        sample=Sample(prompt_token_ids=[1, 2], output_token_ids=[3], output_logprobs=[-0.5]),
    )
    trace = Trace(trace_id="t")
    trace.record(step)
    run = dict.fromkeys(
        ("model", "content", "job_id", "group_id", "slug", "reward", "failure_kind")
    )
    (found,) = atif_trajectory({**run, "trace_id": "t"}, trace.model_dump(mode="json"))["steps"]
    assert found["metrics"]["completion_token_ids"] == [3]
    assert found["metrics"]["logprobs"] == [-0.5]
    assert [call["arguments"] for call in found["tool_calls"]] == [{"a": None}, {}]
    assert found["tool_calls"][1]["extra"] == {"malformed_arguments": "["}


def test_nothing_to_export_is_one_sentence(tmp_path):
    environment = Environment("tooled")
    environment.tool(lambda: "x", name="look")

    @environment.template()
    async def see():
        yield "Look."
        yield 1.0

    with pytest.raises(UsageError, match=r"its environment has tools \(look\)"):
        export_tasks(Taskset("tooled", [see()]), tmp_path / "out")
