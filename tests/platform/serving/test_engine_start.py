"""The process of an engine whose store cannot be opened says so in one sentence."""

import socket
import subprocess
import sys

from hud_platform.serving.frames import pack


def test_an_engine_without_a_store_names_it(tmp_path):
    (tmp_path / "hud.db").mkdir()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-m", "hud_platform.engine_worker", str(theirs.fileno())]
        process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE, text=True
        )
        ours.sendall(pack(["start", str(tmp_path), None, None, 1]))
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "Traceback" not in errors
    assert "The engine cannot run: " in errors
    assert str(tmp_path / "hud.db") in errors
