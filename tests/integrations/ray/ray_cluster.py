"""A Ray cluster of raylets on this machine, for tests: nodes join, get notice, and are lost."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from ray.cluster_utils import Cluster

FAST = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 500,
    "health_check_failure_threshold": 3,
}
"""Times after which the cluster takes a silent node for lost."""
VARIABLES = {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}


class RayCluster:
    """One head node without workers, and the nodes that `add` makes. Nothing of it outlives the block."""

    def __enter__(self):
        # Paths of sockets are at most 107 characters.
        self.folder = Path(tempfile.mkdtemp(prefix="hud-ray-", dir="/tmp"))
        self.before = dict(os.environ)
        # Also where Ray notes the cluster of this machine.
        os.environ |= {**VARIABLES, "RAY_TMPDIR": str(self.folder)}
        head = {
            "num_cpus": 0,
            "include_dashboard": False,
            "include_log_monitor": False,
            "_system_config": FAST,
            "labels": {"market": "on-demand"},
        }
        self.nodes = []
        self.known = []
        """Ids of all nodes that were ever added."""
        self.cluster = Cluster()
        try:
            self.cluster.add_node(**head)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        begun = [one for node in self.cluster.list_all_nodes() for one in _children(node)]
        try:
            self.cluster.shutdown()
        finally:
            os.environ.clear()
            os.environ.update(self.before)
            # Workers would hand back what they play, to a platform that may be gone.
            left = [*begun, *self._processes()]
            for process in left:
                _kill(process)
            psutil.wait_procs(left, 10)
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def address(self):
        return self.cluster.address

    def add(self, **labels):
        """Add a node with labels; returns it."""
        node = self.cluster.add_node(
            num_cpus=1, object_store_memory=80 << 20, labels={"market": "spot", **labels}
        )
        self.nodes.append(node)
        self.known.append(node.node_id)
        return node

    def lose(self, node):
        """Lose the machine of a node: everything on it ends at once."""
        children = _children(node)
        node.all_processes["raylet"][0].process.kill()
        for process in children:
            _kill(process)
        self._forget(node)

    def give_notice(self, node, seconds):
        """Say that a node ends in some seconds, as a cloud's agent does; `lose` ends it."""
        command = [sys.executable, "-m", "ray.scripts.scripts", "drain-node"]
        command += ["--address", self.address, "--node-id", node.node_id]
        command += ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "preempted"]
        command += ["--deadline-remaining-seconds", str(seconds)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def terminate(self, node):
        """Send SIGTERM to a node's raylet, as the end of a pod does."""
        raylet = node.all_processes["raylet"][0].process
        raylet.terminate()
        raylet.wait(30)
        self._forget(node)

    def workers(self, node):
        """Return the processes of our workers on a node."""
        return [one for one in _children(node) if "hud.fleet.child_worker" in _words(one)]

    def supervisor(self):
        """Return the process of the supervisor; None while there is none."""
        children = _children(self.cluster.head_node)
        found = [one for one in children if "ray::Supervisor" in " ".join(_words(one))]
        return found[0] if found else None

    def _forget(self, node):
        self.nodes.remove(node)
        self.cluster.remove_node(node, allow_graceful=False)

    def _processes(self):
        """Return every process that names this cluster's folder."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or ()
            if any(str(self.folder) in word for word in words) and process.pid != os.getpid():
                found.append(process)
        return found


def _children(node):
    """Return what a node's raylet has started, and what that has; nothing where the raylet has ended."""
    try:
        raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
        return raylet.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _words(process):
    """Return a process's command line; nothing where it has ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _kill(process):
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return


def hud(*arguments, code=0, seconds=120.0, **variables):
    """Run a command; returns what it prints, JSON alone where it was asked for."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HUD_")}
    done = subprocess.run(
        [sys.executable, "-m", "hud.cli.main", *arguments],
        env={**kept, **VARIABLES, **variables},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if "--json" in arguments else done.stdout + done.stderr


def until(done, seconds=60.0):
    """Wait until `done()` returns something true; returns it."""
    end = time.monotonic() + seconds
    while not (found := done()):
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.2)
    return found
