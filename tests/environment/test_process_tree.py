"""A process knows without a list whether it has children, ended ones included."""

import subprocess
import sys

import pytest

from hud.environment.processes import process_tree

SCRIPT = """
import os, subprocess, sys
from hud.environment.processes.process_tree import has_children

found = [has_children()]
child = subprocess.Popen(["sleep", "60"])
found.append(has_children())
child.kill()
os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
found.append(has_children())
child.wait()
found.append(has_children())
print(*found)
"""


@pytest.mark.slow
def test_children_count_until_their_status_is_read():
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "True", "True", "False"]


def test_other_systems_are_to_look_at_the_list(monkeypatch):
    monkeypatch.setattr(process_tree.sys, "platform", "darwin")
    assert process_tree.has_children()
