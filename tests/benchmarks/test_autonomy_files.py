"""The category `files` of `autonomy-10`: chores in folders of a workspace, graded on the tree that is left."""

from __future__ import annotations

import gzip
import shutil
import subprocess
import tarfile
from random import Random

import pytest
from tests.benchmarks.played import NOTHING, rewards

from hud.agents import ScriptedAgent
from hud.agents.native.bash import BashTool
from hud.benchmarks import benchmark
from hud.trace import ToolCall
from hud_benchmarks.autonomy.applications.files.tasks import CHORES, chores
from hud_benchmarks.autonomy.applications.files.tree import Tree
from hud_benchmarks.autonomy.grading import grade_state

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


@pytest.mark.slow
@in_a_workspace
async def test_scripts_do_a_task_through_the_shell():
    tasks = files("memos")
    done = await rewards(tasks, benchmark("autonomy-10").oracle())
    assert set(done.values()) == {1.0}
    assert set((await rewards(tasks, NOTHING)).values()) == {0.0}


FORGED = "tar -C /workspace -cf /tmp/left.tar . && chmod 444 /tmp/left.tar && chmod 555 /tmp"
SPOILED = {
    "a pipe": "rm -rf /workspace/*; mkfifo /workspace/pipe; mkdir /tmp/left.tar",
    "an archive of its own": f"cp -r /workspace /tmp/begun; SOLVE; {FORGED}; rm -rf /workspace/*; cp -r /tmp/begun/* /workspace/",
    "a full folder": "SOLVE; head -c 300M /dev/zero > /tmp/full",
    "files that cannot be read": "SOLVE; touch /workspace/x; chmod 000 /workspace/x",
    "a folder that cannot be entered": "SOLVE; mkdir -m 000 /workspace/x",
    "a file larger than any": "SOLVE; truncate -s 900M /workspace/x",
}


@pytest.mark.slow
@in_a_workspace
@pytest.mark.parametrize("mischief", SPOILED.values(), ids=SPOILED)
async def test_what_cannot_be_packed_earns_nothing(mischief):
    async def spoil(run):
        run.attach(BashTool(await run.open("ssh")))
        before, solved, after = mischief.partition("SOLVE")
        for command in (before, *(_steps(run.task) if solved else []), after.strip("; ")):
            if command.strip("; "):
                call = ToolCall(id="1", name="bash", arguments={"command": command.strip("; ")})
                await run.call_tool(call)

    assert set((await rewards(files("memos"), ScriptedAgent(spoil))).values()) == {0.0}


def _steps(task):
    """The commands that do a task."""
    return [
        f"cd /workspace/{name} && {{ {CHORES[name].script}\n}}"
        for name in chores(task.args["kind"], task.args["seed"])
    ]


def sparse(size):
    """A tar archive whose one member declares a size, and has no content."""
    member = tarfile.TarInfo("x")
    member.size = size
    return member.tobuf(tarfile.GNU_FORMAT) + bytes(1024)


DAMAGED = {
    "no archive": b"x" * 600,
    "declares 8 GB": sparse(1 << 33),
    "declares more than any": sparse(1 << 62),
    "names without end": b"".join(
        [tarfile.TarInfo("././@LongLink").tobuf().replace(b"0" + bytes(100), b"L" + bytes(100), 1)]
        * 3000
    ),
}


def with_header(length):
    """An archive with an extended header of so many digits."""
    header, member = tarfile.TarInfo("x"), tarfile.TarInfo("a.txt")
    header.type, header.size = tarfile.XHDTYPE, length
    plain = header.tobuf(tarfile.USTAR_FORMAT) + b"1" * length + b"\0" * (-length % 512)
    return gzip.compress(plain + member.tobuf(tarfile.USTAR_FORMAT) + b"\0" * 1024)


def test_an_archive_with_a_long_header_does_not_hold_the_grader():
    tree = Tree()
    tree.put("x.tar.gz", with_header(4_000_000))  # Hours, where they are read.
    tree.put("y.tar.gz", with_header(100))
    tree.put("z.tar.gz", with_header(100))
    wanted = Tree()
    for name in ("x.tar.gz", "y.tar.gz"):
        wanted.archive(name, {"a.txt": ""})
    states = tree.states(wanted)
    assert states["x.tar.gz"][0] == "file"
    assert states["y.tar.gz"] == (None, frozenset({("a.txt", b"")}))
    assert states["z.tar.gz"][0] == "file"  # No archive is asked for there.


def compared(packed):
    """The state of an archive, where one with a file `a.txt` is asked for."""
    tree, wanted = Tree(), Tree()
    tree.put("x.tar.gz", packed)
    wanted.archive("x.tar.gz", {"a.txt": "text"})
    return tree.states(wanted)["x.tar.gz"], wanted.states(wanted)["x.tar.gz"]


def test_an_archive_of_many_streams_does_not_hold_the_grader():
    state, _ = compared(gzip.compress(b"") * 1_000_000)  # A minute, where they are read.
    assert state[0] == "file"
    asked = Tree()
    asked.put("a.txt", "text")
    packed = asked.packed()
    state, wanted = compared(gzip.compress(packed[:100]) + gzip.compress(packed[100:]) + bytes(3))
    assert state == wanted


def test_a_link_whose_target_is_the_content_is_no_file():
    links = Tree()
    links.link("a.txt", "text")
    state, wanted = compared(gzip.compress(links.packed()))
    assert state != wanted


@pytest.mark.parametrize("plain", DAMAGED.values(), ids=DAMAGED)
@pytest.mark.parametrize("broken", [False, True])
def test_an_archive_of_an_agents_that_cannot_be_read_is_compared_as_a_file(plain, broken):
    tree = Tree()
    packed = gzip.compress(plain)
    tree.put("x.tar.gz", packed[:20] + bytes(8) + packed[28:] if broken else packed)
    assert tree.states(tree)["x.tar.gz"] == tree["x.tar.gz"].seen()
    with pytest.raises(tarfile.TarError):
        Tree.unpacked(plain + bytes(10))


@in_a_workspace
@pytest.mark.slow
async def test_scripts_do_every_chore_in_a_workspace():
    tasks = files("memos", "changes", "logs", "reports")
    done = await rewards(tasks, benchmark("autonomy-10").oracle(), max_concurrent=2)
    assert set(done.values()) == {1.0}
