"""Where control groups for workspaces are made, on machines with either version of the kernel's interface."""

import os
import shutil
import time

import pytest

from hud.environment import Environment, WorkspaceLimits
from hud.environment.current_run import entered
from hud.environment.workspace.sandbox import cgroups
from hud.environment.workspace.sandbox.cgroups import ControlGroup


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Pretend that this machine says so of its mounts and of our membership."""

    def says(mounts, membership):
        (tmp_path / "mounts").write_text("".join(f"{line}\n" for line in mounts))
        (tmp_path / "membership").write_text("".join(f"{line}\n" for line in membership))
        monkeypatch.setattr(cgroups, "MOUNTS", tmp_path / "mounts")
        monkeypatch.setattr(cgroups, "MEMBERSHIP", tmp_path / "membership")

    return says


def limits(folder):
    return {file.name: file.read_text() for file in folder.iterdir()}


def test_with_version_1_each_controller_has_a_folder(machine, tmp_path):
    for name in ("memory", "pids"):
        (tmp_path / name / "box").mkdir(parents=True)
    machine(
        [
            f"31 23 0:28 / {tmp_path}/memory rw - cgroup cgroup rw,memory",
            f"32 23 0:29 / {tmp_path}/pids rw - cgroup cgroup rw,pids",
            f"33 23 0:30 / {tmp_path}/unified rw - cgroup2 cgroup2 rw",
        ],
        ["8:pids:/box", "4:memory:/box", "0::/"],
    )
    group = ControlGroup.create(1 << 20, 30)
    memory, pids = group.folders
    assert memory.parent == tmp_path / "memory" / "box"
    assert limits(memory) == {"memory.limit_in_bytes": str(1 << 20)}
    assert pids.parent == tmp_path / "pids" / "box"
    assert limits(pids) == {"pids.max": "46"}
    (memory / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 0\n")
    assert not group.memory_ran_out()
    (memory / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert group.memory_ran_out()


@pytest.mark.parametrize(
    ("own", "handed_down", "place"),
    [
        ("/user/app/scope", {"user/app": "memory pids"}, "user/app"),
        ("/user/app/scope", {"user": "cpu memory pids", "user/app": "cpu"}, "user"),
        ("/user/app/scope", {"user/app": "pids"}, None),
        ("/", {".": "memory pids"}, "."),
    ],
)
def test_with_version_2_the_nearest_that_hands_down_has_it(
    machine, tmp_path, own, handed_down, place
):
    top = tmp_path / "cgroup"
    (top / own.lstrip("/")).mkdir(parents=True)
    for folder, controllers in handed_down.items():
        (top / folder / "cgroup.subtree_control").write_text(controllers)
    machine([f"30 23 0:27 / {top} rw - cgroup2 cgroup2 rw"], [f"0::{own}"])
    group = ControlGroup.create(1 << 20, 30)
    if place is None:
        assert group is None
        return
    (folder,) = group.folders
    assert folder.parent == top / place
    assert limits(folder) == {"memory.max": str(1 << 20), "pids.max": "46"}
    (folder / "memory.events").write_text("low 0\noom 1\noom_kill 1\n")
    assert group.memory_ran_out()


def test_a_machine_without_any_has_none(machine):
    machine(["22 1 8:1 / / rw - ext4 /dev/sda1 rw"], ["0::/"])
    assert ControlGroup.create(1 << 20, 30) is None


def test_the_groups_of_killed_processes_are_removed_by_the_next(machine, tmp_path):
    top = tmp_path / "cgroup"
    top.mkdir()
    (top / "cgroup.subtree_control").write_text("memory pids")
    machine([f"30 23 0:27 / {top} rw - cgroup2 cgroup2 rw"], ["0::/"])
    gone = top / "hud-workspace-4194305-1-0"  # No process has so high a number.
    reused = top / f"hud-workspace-{os.getpid()}-1-0"
    gone.mkdir()
    reused.mkdir()
    first = ControlGroup.create(1 << 20, 30)
    ControlGroup.create(1 << 20, 30)
    assert not gone.exists()
    assert not reused.exists()
    assert first.folders[0].exists()


def test_processors_are_bounded_where_they_can_be(machine, tmp_path):
    for name in ("memory", "pids", "cpu"):
        (tmp_path / name).mkdir()
    mounted = [
        f"{number} 23 0:28 / {tmp_path}/{name} rw - cgroup cgroup rw,{name}"
        for number, name in enumerate(("memory", "pids", "cpu"), 31)
    ]
    member = [f"{number}:{name}:/" for number, name in enumerate(("memory", "pids", "cpu"), 1)]
    machine(mounted, member)
    bounded = ControlGroup.create(1 << 20, 30, 1.5)
    assert limits(bounded.folders[2]) == {"cpu.cfs_quota_us": "150000"}
    assert len(ControlGroup.create(1 << 20, 30).folders) == 2
    shutil.rmtree(tmp_path / "cpu")
    still = ControlGroup.create(1 << 20, 30, 1.5)
    assert len(still.folders) == 2  # Memory and processes are bounded all the same.


@pytest.mark.slow
async def test_a_workspace_keeps_no_more_processors_busy_than_it_may():
    if shutil.which("bwrap") is None:
        pytest.skip("there is no bubblewrap here: scripts/setup-worlds")
    few = WorkspaceLimits(memory_mb=128, processes=32, disk_mb=8, scratch_mb=8, processors=0.2)
    env = Environment("place")
    shell = env.workspace(limits=few)
    async with env.run() as run:
        with entered(run):
            group = shell.opened.sandbox.launch.group
            if group is None or len(group.folders) < 3:
                pytest.skip("no control group of processors can be made here")
            busy = "for i in 1 2 3 4; do (while :; do :; done) & done; sleep 1.5; kill $(jobs -p); times"
            begun = time.monotonic()
            done = await shell.bash(busy, timeout=30)
            took = time.monotonic() - begun
    spent = done.stdout.split("\n")[1].split()  # Of the children: user and system.
    seconds = sum(
        int(part[:-1].split("m")[0]) * 60 + float(part[:-1].split("m")[1]) for part in spent
    )
    assert 0 < seconds < 0.2 * took + 0.3
