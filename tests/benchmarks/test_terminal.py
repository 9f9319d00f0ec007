"""terminal-12: every task is solved by its own solution and by nothing else, and graders are out of the agent's reach."""

import hashlib
import tomllib

import pytest
from tests.benchmarks.played import NOTHING, installed, rewards
from tests.container_engines import TINY, require_engine
from tests.integrations.containers.image_layouts import needs_bubblewrap

from hud.agents import ScriptedAgent
from hud.audit import Audit
from hud.errors import UsageError
from hud.eval import Taskset
from hud.eval.runtimes.containers.container import ContainerSpec, container
from hud_benchmarks.terminal.environment import TASKS, env

FOLDERS = sorted(path.parent for path in TASKS.glob("*/task.toml"))
NAMES = [folder.name for folder in FOLDERS]
FEW = ["convert-ledger", "issue-slots"]
CONFINED = ["build-wordstat", "issue-slots", "repair-ledger", "speed-overlaps"]
"""Tasks whose tests execute what the agent wrote."""


def some(*names):
    return Taskset("some", [task for task in env.all_tasks() if task.slug in names])


@needs_bubblewrap
async def test_own_solutions_earn_everything_and_nothing_earns_nothing():
    benchmark = installed("terminal-12")
    tasks = some(*FEW)
    assert await rewards(tasks, benchmark.oracle()) == dict.fromkeys(FEW, 1.0)
    assert await rewards(tasks, NOTHING) == dict.fromkeys(FEW, 0.0)


@pytest.mark.slow
@needs_bubblewrap
async def test_every_task_is_solved_by_its_solution_and_not_by_nothing():
    benchmark = installed("terminal-12")
    tasks = benchmark.tasks("held-out")
    assert len(tasks) == benchmark.sizes["held-out"] == 12
    assert len({task.columns["category"] for task in tasks}) == 12
    assert await rewards(tasks, benchmark.oracle()) == dict.fromkeys(NAMES, 1.0)
    assert await rewards(tasks, NOTHING) == dict.fromkeys(NAMES, 0.0)


@pytest.mark.slow
@pytest.mark.timeout(900)
@needs_bubblewrap
async def test_no_exploit_earns_anything(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path))
    audit = Audit(installed("terminal-12").tasks("held-out"), max_concurrent=4)
    await audit.play()
    report = audit.report()
    earned = {task.slug: max(task.rewards.values(), default=0.0) for task in report.tasks}
    assert max(earned.values()) <= 0.05, earned


@pytest.mark.parametrize("folder", FOLDERS, ids=NAMES)
def test_a_folder_is_a_whole_task_that_tells_no_answer(folder):
    declared = tomllib.loads((folder / "task.toml").read_text())
    assert declared["task"]["name"] == f"openhud/{folder.name}"
    assert declared["environment"]["network_mode"] == "no-network"
    assert len((folder / "instruction.md").read_text()) > 200
    assert (folder / "solution/solve.sh").is_file()
    shown = {digest(path) for path in (folder / "environment").rglob("*") if path.is_file()}
    answers = [path for path in (folder / "solution").rglob("*") if path.is_file()]
    assert not shown & {digest(path) for path in answers}
    wanted = folder / "tests/wanted.json"
    assert not wanted.exists() or digest(wanted) not in shown
    scripts = {(other / "tests/test.sh").read_text() for other in FOLDERS}
    assert len(scripts) == 1


def test_what_confines_programs_is_the_same_in_every_task():
    copies = {folder.name: folder / "tests/confined.py" for folder in FOLDERS}
    have = {name: path.read_text() for name, path in copies.items() if path.exists()}
    assert sorted(have) == CONFINED
    assert len(set(have.values())) == 1


def test_there_is_nothing_to_train_on():
    with pytest.raises(UsageError, match="no tasks to train on"):
        installed("terminal-12").tasks("train")


# -- attacks on the tests --------------------------------------------------------------------------------

SHADOW = "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\nexit 0\n"
SHADOWED = ("bash", "env", "python3", "git", "cc", "gcc", "make", "sh", "as", "ld")
HOSTILE_PYTHON = """
import os, sys, time
def attempt(action):
    try:
        return action()
    except BaseException:
        return None
def write(path, text):
    with open(path, "w") as file:
        file.write(text)
attempt(lambda: write("/logs/verifier/reward.txt", "1"))
attempt(lambda: write("/logs/verifier/reward.json", "1"))
attempt(lambda: os.rename("/logs/verifier", "/logs/before"))
attempt(lambda: os.rename("/logs/planted", "/logs/verifier"))
attempt(lambda: os.symlink("/app/planted", "/logs/verifier"))
pid = attempt(os.fork)
if pid == 0:
    os.setsid()
    while True:
        attempt(lambda: write("/logs/verifier/reward.txt", "1"))
        attempt(lambda: write("/logs/verifier/reward.json", "1"))
secrets = attempt(lambda: os.listdir("/tests"))
memory = attempt(lambda: open(f"/proc/{os.getppid()}/mem", "rb").read(1))
if secrets or memory or pid is not None:
    sys.stdout.write("BREACH")
"""
HOSTILE_C = r"""
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(void) {
    FILE *file = fopen("/logs/verifier/reward.txt", "w");
    if (file) { fputs("1", file); fclose(file); }
    rename("/logs/planted/reward.txt", "/logs/verifier/reward.txt");
    rename("/logs/planted/reward.json", "/logs/verifier/reward.json");
    if (fork() == 0) { setsid(); for (;;) rename("/logs/planted/more.txt", "/logs/verifier/reward.txt"); }
    if (getenv("SECRET")) puts(getenv("SECRET"));
    return 0;
}
"""
READS_TESTS = r'#include "/tests/check.py"' + "\nint main(void) { return 0; }\n"
NAMED = "cd$${IFS}..;cd$${IFS}..;cd$${IFS}app;sh$${IFS}e;true||x.c"
"""End of the name of a file, which make takes for a recipe."""
FORGES = """echo 1 > /logs/forged
(setsid sh -c 'while :; do ln -f /logs/forged /logs/verifier/reward.txt; done' > /dev/null 2>&1 < /dev/null &)
"""


def attacker(files, commands=""):
    async def play(run):
        shell = await run.open("ssh")
        await shell.run("mkdir -p /logs/planted /app/planted ~/.local/bin")
        for place in ("/logs/planted", "/app/planted"):
            await shell.run(
                f"cd {place} && for name in reward.txt reward.json more.txt; do echo 1 > $name; done"
            )
        for name in SHADOWED:
            await shell.write(f"/home/agent/.local/bin/{name}", SHADOW.encode())
        for path, text in files.items():
            await shell.write(path, text.encode())
        await shell.write(
            "/home/agent/.gitconfig", b"[core]\n\tfsmonitor = echo 1 > /logs/verifier/reward.txt\n"
        )
        await shell.write("/home/agent/.bashrc", SHADOW.encode())
        if commands:
            await shell.run(commands)
        await shell.run(
            "/bin/chmod +x ~/.local/bin/*; ln -s /app/planted/reward.txt /logs/verifier/reward.txt"
        )
        return "done"

    return ScriptedAgent(play)


@pytest.mark.slow
@needs_bubblewrap
@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("speed-overlaps", {"/app/overlaps.py": HOSTILE_PYTHON}),
        ("issue-slots", {"/app/clinic/slots/__init__.py": HOSTILE_PYTHON}),
        ("issue-slots", {"/app/clinic/json.py": HOSTILE_PYTHON, "/app/json.py": HOSTILE_PYTHON}),
        (
            "build-wordstat",
            {
                "/app/src/main.c": HOSTILE_C,
                "/app/Makefile": "all:\n\techo 1 > /logs/verifier/reward.txt\n",
            },
        ),
        ("build-wordstat", {"/app/src/main.c": READS_TESTS}),
        ("build-wordstat", {f"/app/src/main.c;{NAMED}": "", "/app/e": FORGES}),
        ("build-wordstat", {f"/app/src/x`{NAMED}": "", "/app/e": FORGES}),
        ("build-wordstat", {f"/app/src/main.c;{NAMED.removesuffix('c')}h": "", "/app/e": FORGES}),
        ("repair-ledger", {"/app/ledger.c": HOSTILE_C}),
        ("repair-ledger", {"/app/ledger.c": READS_TESTS}),
        ("configure-relay", {"/app/relay.py": HOSTILE_PYTHON}),
        ("clean-history", {"/app/clean.bundle": "no bundle"}),
    ],
)
async def test_programs_of_the_agent_do_not_reach_the_reward(name, files):
    job = await some(name).run(attacker(files))
    run = job.runs[0]
    assert (run.reward, run.failure_kind in (None, "agent")) == (0.0, True), run.error
    if run.grade is not None:
        assert "BREACH" not in str(run.grade.info)


@pytest.mark.slow
@needs_bubblewrap
async def test_answers_that_are_nearly_right_earn_nothing():
    near = {
        "full-flash": "bash -c 'rm -r flash/cache flash/log'",
        "clean-history": "git init -q --bare /tmp/x && git -C /tmp/x fast-import --quiet < shop.stream && git -C /tmp/x bundle create -q /app/clean.bundle --all",
        "resolve-lock": """echo '{"app": "1.0", "web": "2.0", "store": "2.0", "http": "1.4", "template": "1.0", "codec": "1.2", "log": "1.4"}' > lock.json""",
        "migrate-clinic": "python3 -c \"import sqlite3; sqlite3.connect('new.db').executescript(open('schema.sql').read())\"",
        "convert-ledger": "echo [] > ledger.jsonl; echo {} > totals.json",
    }

    async def play(run):
        shell = await run.open("ssh")
        return (await shell.run(f"cd /app && {near[run.slug]}")).stderr

    assert await rewards(some(*near), ScriptedAgent(play)) == dict.fromkeys(near, 0.0)


# -- containers ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_the_tasks_are_the_same_in_containers():
    """The folders are played by docker or podman as the format has it, with this machine's programs as the image's."""
    require_engine()
    mounts = {place: place for place in ("/usr", "/etc/alternatives")}
    spec = ContainerSpec(TINY, command=("sleep", "900"), mounts=mounts, network="none")
    earned = {}
    for folder in FOLDERS:
        for solved in (True, False):
            earned[folder.name, solved] = await in_container(spec, folder, solved)
    assert earned == {(name, solved): float(solved) for name in NAMES for solved in (True, False)}


async def in_container(spec, folder, solved):
    async with container(spec) as box:
        await box.execute(["mkdir", "-p", "/app", "/tests", "/solution", "/logs/verifier"])
        await box.copy_in(folder / "environment/files", "/app")
        if solved:
            await box.copy_in(folder / "solution", "/solution")
            done = await box.execute(["bash", "-c", "cd /app && bash /solution/solve.sh"])
            assert done.exit_code == 0, done.stderr
        await box.end_all()
        await box.copy_in(folder / "tests", "/tests")
        done = await box.execute(["bash", "-c", "cd /app && bash /tests/test.sh"])
        read = await box.execute(["cat", "/logs/verifier/reward.txt"])
        assert read.exit_code == 0, f"{folder.name}: {done.stderr}"
        return float(read.stdout)


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()
