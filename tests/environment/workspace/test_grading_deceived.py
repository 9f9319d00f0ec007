"""Files that an agent leaves do not decide how it is graded: no module, no link, no memory of a checker's."""

import importlib.metadata
import importlib.util
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from hud.capabilities.shell.ssh import SSHClient
from hud.environment import Environment, Mount, WorkspaceLimits
from hud.environment.current_run import entered
from hud.errors import AgentFault
from hud.eval import LocalRuntime
from hud.eval.rollouts import rollout
from hud.graders import BashGrader
from hud.trace.recording.recorder import NullRecorder

pytestmark = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="there is no bubblewrap here: scripts/setup-worlds"
)
SMALL = WorkspaceLimits(memory_mb=256, processes=64, disk_mb=32, scratch_mb=8)
HIDDEN = """
import unittest
from calc import add

class Sums(unittest.TestCase):
    def test_it(self):
        import random, json
        self.assertEqual(add(2, 3), 5)
"""
SHADOWS = (
    "for m in unittest random json types enum re collections codecs io abc site sitecustomize usercustomize "
    "difflib signal traceback fnmatch; do echo 'import os; os._exit(0)' > $m.py; "
    "mkdir -p p/$m && cp $m.py p/$m/__init__.py; done; mkdir unittest && cp unittest.py unittest/__init__.py"
)


async def graded(template_of, mischief, **options):
    """Play `mischief` in a workspace, and have it graded."""
    env = Environment("place")
    shell = env.workspace(limits=SMALL, **options)
    task = env.template(id="task")(template_of(shell))

    async def agent(run):
        done = await (await run.open("ssh")).run(mischief, timeout=20)
        assert done.exit_status == 0, done.stderr

    return await rollout(task(), agent, runtime=LocalRuntime(env), recorder=NullRecorder())


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", ["discover tests", "tests/test_calc.py", "discover -s tests -t ."]
)
@pytest.mark.parametrize("right", [False, True])
async def test_modules_of_the_agents_do_not_stand_in_for_those_of_a_checker(
    tmp_path, command, right
):
    (tmp_path / "test_calc.py").write_text(HIDDEN)
    (tmp_path / "__init__.py").touch()

    def template_of(shell):
        async def task():
            yield "Repair calc.py."
            await shell.bash("rm -rf tests")
            await shell.copy_in(tmp_path, "tests")
            score = await BashGrader.grade(
                command=f"python3 -m unittest {command}", workspace=shell
            )
            yield {"score": score.value, "info": score.info}

        return task

    operator = "+" if right else "-"
    run = await graded(
        template_of, f"echo 'def add(a, b): return a {operator} b' > calc.py; {SHADOWS}"
    )
    assert (run.failure_kind, run.reward) == (None, float(right)), (run.error, run.grade.info)


ENDS = "import os; os._exit(0)"
PLUGIN = (
    f"echo '{ENDS}' > evil.py; mkdir {{0}}; printf '[pytest11]\\ne = evil\\n' > {{0}}/entry_points.txt; "
    "printf 'Metadata-Version: 2.1\\nName: e\\nVersion: 1\\n' > {0}/{1}"
)
BESIDE_PYTEST = {
    "modules that pytest imports": f"for m in pygments py packaging exceptiongroup tomli; do echo '{ENDS}' > $m.py; done",
    "folders of them": f"for m in pygments py; do mkdir $m; echo '{ENDS}' > $m/__init__.py; done",
    "a plugin of a distribution": PLUGIN.format("e-1.dist-info", "METADATA"),
    "a plugin of an egg": PLUGIN.format("e.egg-info", "PKG-INFO"),
}


@pytest.fixture(scope="module")
def with_pytest():
    """A virtual environment of the machine's Python with pytest, in a folder that every user may read."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        copy_pytest(Path(folder))
        yield folder


def copy_pytest(folder):
    python = Path("/usr/bin/python3")
    version = "import sys; print('python%d.%d' % sys.version_info[:2])"
    name = subprocess.run([python, "-c", version], capture_output=True, text=True, check=True)
    packages = folder / "lib" / name.stdout.strip() / "site-packages"
    for needed in ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments"):
        source = Path(importlib.util.find_spec(needed).origin).parent
        shutil.copytree(source, packages / needed)
    shutil.copy(importlib.util.find_spec("py").origin, packages)
    for distribution in ("pytest", "pluggy"):  # pytest reads its own version there.
        source = Path(importlib.metadata.distribution(distribution)._path)
        shutil.copytree(source, packages / source.name)
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(python)
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\n")


@pytest.mark.slow
@pytest.mark.parametrize("mischief", BESIDE_PYTEST.values(), ids=BESIDE_PYTEST)
async def test_what_pytest_loads_besides_tests_is_not_the_agents(tmp_path, with_pytest, mischief):
    (tmp_path / "test_it.py").write_text(
        "def test_it():\n    assert open('answer').read() == '42'\n"
    )

    def template_of(shell):
        async def task():
            yield "Write 42 to the file answer."
            await shell.empty("tests")
            await shell.copy_in(tmp_path, "tests")
            command = "/opt/checks/bin/python -m pytest -q tests/test_it.py"
            score = await BashGrader.grade(command=command, workspace=shell)
            yield {"score": score.value, "info": score.info}

        return task

    mounts = [Mount(with_pytest, "/opt/checks")]
    for work, reward in (("true", 0.0), ("printf 42 > answer", 1.0)):
        run = await graded(template_of, f"{mischief}; {work}", mounts=mounts)
        assert (run.failure_kind, run.reward) == (None, reward), run.grade.info


async def test_a_python_path_that_a_workspace_declares_stays():
    def template_of(shell):
        async def task():
            yield "Write lib/helper.py."
            score = await BashGrader.grade(
                command="python3 -c 'import helper, unittest'", workspace=shell
            )
            yield score.value

        return task

    run = await graded(
        template_of,
        "mkdir lib; touch lib/helper.py; echo 'raise SystemExit(3)' > lib/unittest.py",
        env={"PYTHONPATH": "/workspace/lib"},
    )
    assert (run.failure_kind, run.reward) == (None, 1.0), run.error


LINKS = {
    "a file": "ln -s /workspace/mine check.py",
    "nowhere": "ln -s /nowhere/at/all check.py",
    "a hard link": "ln mine check.py",
    "a pipe": "mkfifo check.py",
    "its own": "ln -s check.py check.py",
}


@pytest.mark.parametrize("link", LINKS.values(), ids=LINKS)
async def test_what_is_written_goes_where_it_is_said_to_and_nowhere_else(link, tmp_path):
    (tmp_path / "check.py").write_text("hidden\n")
    async with Opened() as (shell, client):
        assert (await client.run(f"echo own > mine; chmod 751 mine; {link}")).exit_status == 0
        await shell.write("check.py", "hidden\n")
        assert await shell.read("mine") == b"own\n"
        assert await shell.read("check.py") == b"hidden\n"
        await client.run(f"rm check.py; {link}")
        await shell.copy_in(tmp_path / "check.py", "check.py")
        assert (await shell.read("mine"), await shell.read("check.py")) == (b"own\n", b"hidden\n")


@pytest.mark.slow
async def test_folders_on_the_way_are_folders_not_links(tmp_path):
    (tmp_path / "check.py").write_text("hidden\n")
    async with Opened() as (shell, client):
        await client.run("mkdir elsewhere; ln -s elsewhere tests; ln -s /tmp deep")
        await shell.write("tests/check.py", "hidden\n")
        await shell.write("deep/down/check.py", "hidden\n")
        said = (await client.run("ls elsewhere /tmp; stat -c %F tests deep")).stdout.split("\n")
        assert said == ["/tmp:", "", "elsewhere:", "directory", "directory", ""]
        await client.run("rm -rf tests deep; ln -s elsewhere tests; ln -s /tmp deep")
        await shell.copy_in(tmp_path, "tests")
        await shell.copy_in(tmp_path, "deep/down")
        said = (await client.run("ls elsewhere /tmp; stat -c %F tests deep")).stdout.split("\n")
        assert said == ["/tmp:", "", "elsewhere:", "directory", "directory", ""]
        await shell.write("/var/tmp/check.py", "the system's links are followed\n")
        assert b"system" in await shell.read("/tmp/check.py")


@pytest.mark.slow
async def test_an_answer_that_links_to_what_comes_in_later_is_no_answer(tmp_path):
    (tmp_path / "expected").write_text("42\n")

    def template_of(shell):
        async def task():
            yield "Leave the answer in `out`."
            await shell.copy_in(tmp_path, "hidden")
            yield float(await shell.read("out") == await shell.read("hidden/expected"))

        return task

    for mischief in ("ln -s hidden/expected out", "ln -s /workspace/hidden/expected out"):
        run = await graded(template_of, mischief)
        assert (run.failure_kind, run.reward) == ("agent", 0.0), run.error
    run = await graded(template_of, "echo 42 > out")
    assert (run.failure_kind, run.reward) == (None, 1.0), run.error


async def test_a_file_that_is_written_over_keeps_its_mode(tmp_path):
    async with Opened() as (shell, client):
        await client.run("printf '#!/bin/sh\\necho old\\n' > run.sh; chmod 755 run.sh")
        await shell.write("run.sh", "#!/bin/sh\necho new\n")
        assert (await client.run("./run.sh")).stdout == "new\n"
        with pytest.raises(AgentFault, match="a folder is there"):
            await client.run("mkdir folder")
            await shell.write("folder", "x")


MEDDLER = r"""
import os, re, time
while True:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if int(pid) == os.getpid() or b"sleep" not in open(f"/proc/{pid}/cmdline", "rb").read():
                continue
            memory = os.open(f"/proc/{pid}/mem", os.O_RDWR)
            open("/workspace/written", "w").write("opened")
        except OSError as error:
            with open("/workspace/unseen", "w") as file:
                file.write(str(error))
            os.rename("/workspace/unseen", "/workspace/seen")
"""


@pytest.mark.slow
async def test_what_runs_beside_a_grader_does_not_write_its_memory():
    def template_of(shell):
        async def task():
            yield "Start your server."
            score = await BashGrader.grade(
                command="python3 -I -c 'import time; time.sleep(1.5) # sleep'; cat written seen",
                workspace=shell,
                among_running=True,
            )
            yield {"score": 0.0, "info": score.info}

        return task

    run = await graded(
        template_of,
        f"cat > meddler.py <<'END'\n{MEDDLER}\nEND\nsetsid python3 meddler.py >/dev/null 2>&1 &",
        keeps_running=True,
    )
    assert run.failure_kind is None, run.error
    assert run.grade.info["stdout"].startswith("[Errno 13] Permission denied: '/proc/")
    assert "opened" not in run.grade.info["stdout"]


class Opened:
    """A run's workspace, and its agent's client."""

    async def __aenter__(self):
        env = Environment("place")
        shell = env.workspace(limits=SMALL)
        self.run = env.run()
        run = await self.run.__aenter__()
        self.scope = entered(run)
        self.scope.__enter__()
        self.client = await SSHClient.connect(shell.opened.capability)
        return shell, self.client

    async def __aexit__(self, *_):
        await self.client.close()
        self.scope.__exit__(None, None, None)
        await self.run.__aexit__()
