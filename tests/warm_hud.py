"""`hud` without the second that an interpreter and its imports take: each call is a fork of one warm process.

    with WarmHud(folder) as hud:
        subprocess.run([hud.program, "eval", ...])        # like .venv/bin/hud: arguments, environment, streams, signals

For tests that play dozens of command lines as a shell does; what an installed `hud` does is tested where it is installed.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

_CLIENT = """#!{python} -ISE
import array, json, os, signal, socket, sys
here = socket.socket(socket.AF_UNIX)
here.connect({socket!r})
asked = json.dumps({{"argv": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ)}}).encode()
here.sendmsg([len(asked).to_bytes(8, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])
here.sendall(asked)
child = int.from_bytes(here.recv(8), "big")
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda got, _: os.kill(child, got))
sys.exit(int.from_bytes(here.recv(8), "big"))
"""
_PR_SET_PDEATHSIG = 1
_WARM = [
    "hud.cli.evaluation.eval",
    "hud.cli.training.train",
    "hud.cli.models.group",
    "hud.cli.evaluation.player",
    "hud.cli.evaluation.jobs",
    "hud.cli.evaluation.trace",
    "hud.cli.evaluation.export",
    "hud_platform.commands.up",
    "hud_dashboard.commands.view",
    "hud.cli.evaluation.report",
    "hud.cli.evaluation.progress",
    "hud.cli.training.panel",
    "hud.train.loop",
    "hud.eval",
    "hud.train",
    "hud_platform.application",
    "hud_platform.server",
    "hud.client.embedded",
    "hud.engine.policy",
    "hud.engine.sample.sampler",
    "hud.engine.learn.local_trainer",
    "hud.engine.tiny_model",
    "torch",
    "transformers",
]


class WarmHud:
    """A process that has everything imported, and the program that has it fork."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = folder / "hud"
        self.socket = str(folder / "hud.socket")

    def __enter__(self) -> WarmHud:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.program.write_text(_CLIENT.format(python=sys.executable, socket=self.socket))
        self.program.chmod(0o755)
        self.process = subprocess.Popen(
            [sys.executable, __file__, self.socket],
            stdin=subprocess.PIPE,  # It ends with whoever started it.
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"
        return self

    def __exit__(self, *exc: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(60)
        finally:
            # What waits for commands that go on, and with it those.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            assert self.process.stdout is not None
            self.process.stdout.close()


def serve(path: str) -> None:
    """Fork for each request; a child's exit code is its answer."""
    import importlib

    for name in _WARM:
        importlib.import_module(name)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    print("ready", flush=True)
    while listener in select.select([listener, 0], [], [])[0]:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _answer(connection)
        connection.close()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _answer(connection: socket.socket) -> None:
    """Run one command in a child, and tell the client how it ended."""
    streams = array.array("i")
    length, ancillary, _, _ = connection.recvmsg(8, socket.CMSG_SPACE(3 * streams.itemsize))
    streams.frombytes(ancillary[0][2])
    size = int.from_bytes(length, "big")
    asked = b""
    while len(asked) < size:
        asked += connection.recv(size - len(asked))
    child = os.fork()
    if child == 0:
        connection.close()
        _run(json.loads(asked), list(streams))
    connection.sendall(child.to_bytes(8, "big"))
    for stream in streams:
        os.close(stream)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    with contextlib.suppress(OSError):
        connection.sendall((code if code >= 0 else 128 - code).to_bytes(8, "big"))
    os._exit(0)


def _run(asked: dict[str, Any], streams: list[int]) -> None:
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    paths = asked["env"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [path for path in paths if path and path not in sys.path]
    sys.argv = ["hud", *asked["argv"]]
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False, buffering=1)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False, buffering=1)  # noqa: SIM115
    from hud.cli.main import main

    code = 1
    try:
        main(asked["argv"])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    sys.path.pop(0)  # The folder of this file has modules of tests.
    serve(sys.argv[1])
