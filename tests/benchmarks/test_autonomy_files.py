"""The category `files` of `autonomy-10`: chores in folders of a workspace, graded on the tree that is left."""

from __future__ import annotations

import shutil
import subprocess
from random import Random

import pytest
from tests.benchmarks.played import NOTHING, rewards

from hud.agents import ScriptedAgent
from hud.agents.native.bash import BashTool
from hud.benchmarks import benchmark
from hud.benchmarks.autonomy.applications.files.tasks import CHORES
from hud.benchmarks.autonomy.applications.files.tree import Tree
from hud.benchmarks.autonomy.grading import grade_state
from hud.trace import ToolCall

SEED = 1_000_000
in_a_workspace = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="needs bubblewrap (scripts/setup-worlds)"
)


def files(*kinds):
    return benchmark("autonomy-10").tasks().filter([f"files-{kind}-{SEED}" for kind in kinds])


def found(folder):
    packed = subprocess.run(["tar", "-cf", "-", "."], cwd=folder, capture_output=True, check=True)
    return Tree.unpacked(packed.stdout)


def grade(chore, left):
    states = [tree.states(chore.wanted) for tree in (chore.before, chore.wanted, left)]
    return grade_state(*states, part=lambda path: 0).reward


@pytest.mark.parametrize("name", CHORES)
def test_a_script_does_its_chore(name, tmp_path):
    """The scripts read what an agent reads: they know no seed."""
    kind = CHORES[name]
    chore, again = kind.make(Random(SEED)), kind.make(Random(SEED))
    assert chore.before.packed() == again.before.packed()
    subprocess.run(["tar", "-xpf", "-", "-C", tmp_path], input=chore.before.packed(), check=True)
    assert grade(chore, found(tmp_path)) == 0.0
    subprocess.run(["bash", "-c", kind.script], cwd=tmp_path, capture_output=True, check=False)
    left = found(tmp_path)
    assert grade(chore, left) == 1.0
    left.put("stray.txt", "")
    assert grade(chore, left) == grade(chore, Tree()) == 0.0


@in_a_workspace
async def test_scripts_do_a_task_through_the_shell():
    tasks = files("memos")
    done = await rewards(tasks, benchmark("autonomy-10").oracle())
    assert set(done.values()) == {1.0}
    assert set((await rewards(tasks, NOTHING)).values()) == {0.0}


@in_a_workspace
async def test_what_cannot_be_packed_earns_nothing():
    async def spoil(run):
        run.attach(BashTool(await run.open("ssh")))
        command = "rm -rf /workspace/*; mkfifo /workspace/pipe; mkdir /tmp/left.tar"
        await run.call_tool(ToolCall(id="1", name="bash", arguments={"command": command}))

    assert set((await rewards(files("memos"), ScriptedAgent(spoil))).values()) == {0.0}


@in_a_workspace
@pytest.mark.slow
async def test_scripts_do_every_chore_in_a_workspace():
    tasks = files("memos", "changes", "logs", "reports")
    done = await rewards(tasks, benchmark("autonomy-10").oracle(), max_concurrent=2)
    assert set(done.values()) == {1.0}
