"""`Office`: a warm LibreOffice without a screen that recalculates workbooks, in a sandbox without a network.

One process serves all runs of this process, one workbook after the other. It starts with the first one, and ends when it was
idle for a while.
"""

from __future__ import annotations

import atexit
import functools
import select
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hud import exact_json
from hud.environment.processes.reaper import reaped_command
from hud.environment.processes.run_processes import claim
from hud.environment.workspace.sandbox.bubblewrap import required_program
from hud.errors import EnvironmentFault, UsageError
from hud.processes.locked_folder import LockedFolder, remove_orphans

START_SECONDS = 180.0
CALCULATION_SECONDS = 60.0
ANSWER_BYTES = 64 << 20
"""Largest answer of LibreOffice that is read: formulas can make texts of any number and length."""
IDLE_SECONDS = 60.0
"""Time without a recalculation after which LibreOffice ends; the next one starts it again."""
PYTHON = "/usr/bin/python3"
"""The system's Python, for which the Debian package `python3-uno` installs LibreOffice's bindings."""
_READ_ONLY = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/libreoffice", "/etc/fonts")
_PROGRAMS = ("/etc/alternatives", "/etc/ld.so.cache", "/var/cache/fontconfig", "/opt")

Values = dict[str, list[list[float | str]]]
"""Rows of each sheet from A1 on: numbers, texts, errors such as `#REF!`; an empty cell is ''."""
Changes = Mapping[str, float | str]
"""Contents to be set before a recalculation, by place: `Sheet!B2`."""


class CalculationError(UsageError):
    """The workbook could not be recalculated."""


class Office:
    """One LibreOffice. Its methods block, and may be called from several threads.

    `seconds` is the limit of one recalculation, with all of its changes, and `answer_bytes` that of the size of its values.
    """

    def __init__(
        self,
        seconds: float = CALCULATION_SECONDS,
        idle_seconds: float = IDLE_SECONDS,
        answer_bytes: int = ANSWER_BYTES,
    ) -> None:
        self._seconds = seconds
        self._answer_bytes = answer_bytes
        self._idle_seconds = idle_seconds
        self._idle: threading.Timer | None = None
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: LockedFolder | None = None

    def recalculate(self, workbook: bytes, changes: Sequence[Changes] = ({},)) -> list[Values]:
        """Return the values of a workbook (.xlsx) after each set of changes, each from the workbook as it is.

        Raises `CalculationError` where it cannot be read or takes too long, and `EnvironmentFault` where LibreOffice
        does not start.
        """
        with self._lock:
            self._stay()
            # Once more where it ended: that may be the machine's doing.
            answer = self._calculated(workbook, changes) or self._calculated(workbook, changes)
            self._idle = threading.Timer(self._idle_seconds, self.close)
            self._idle.daemon = True
            self._idle.start()
        if answer is None:
            raise CalculationError("LibreOffice ended while it calculated the workbook.")
        if "error" in answer:
            raise CalculationError(f"The workbook cannot be calculated: {answer['error']}.")
        values: list[Values] = answer["values"]
        return values

    def close(self) -> None:
        """End the process; the next recalculation starts another."""
        with self._lock:
            self._stay()
            self._end()

    def _stay(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _calculated(
        self, workbook: bytes, changes: Sequence[Changes]
    ) -> dict[str, list[Values]] | None:
        """Return the worker's answer, None where it ended; raises `CalculationError` where it takes too long."""
        running = self._process is not None and self._process.poll() is None
        # Folders of temporary files are emptied at times, also while their program runs.
        if not running or self._folder is None or not self._folder.path.is_dir():
            self._start()
        assert self._folder is not None
        file = self._folder.path / "workbook.xlsx"
        file.write_bytes(workbook)
        return self._ask({"file": str(file), "changes": list(changes)})

    def _start(self) -> None:
        self._end()
        remove_orphans("office")
        self._folder = LockedFolder("office")
        errors = self._folder.path / "errors"
        with errors.open("wb") as stream:
            self._process = subprocess.Popen(
                reaped_command(_sandboxed(self._folder.path)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                bufsize=0,
            )
        claim(
            self._process.pid
        )  # Sheets that a tool calculates and those that a grader does share it.
        if self._line(START_SECONDS) is None:
            message = errors.read_text(errors="replace").strip()[-300:]
            self._end()
            raise EnvironmentFault(
                f"LibreOffice does not start within {START_SECONDS:g} s (are libreoffice-calc and python3-uno "
                f"installed?): {message or 'no message'}"
            )

    def _ask(self, order: dict[str, object]) -> dict[str, list[Values]] | None:
        assert self._process is not None
        assert self._process.stdin is not None
        limit = time.monotonic() + self._seconds
        try:
            self._process.stdin.write(exact_json.dumps(order) + b"\n")
            line = self._line(self._seconds)
        except OSError:
            line = None
        except CalculationError:
            self._end()
            raise
        if line is None:
            late = time.monotonic() >= limit
            self._end()
            if not late:
                return None
            raise CalculationError(
                f"The workbook could not be calculated within {self._seconds:g} s."
            )
        answer: dict[str, list[Values]] = exact_json.loads(line)
        return answer

    def _line(self, seconds: float) -> bytes | None:
        """Return the next line of the process; None where it ends or takes longer."""
        assert self._process is not None
        assert self._process.stdout is not None
        stream, limit, read = self._process.stdout, time.monotonic() + seconds, bytearray()
        while not read.endswith(b"\n"):
            ready = select.select([stream], [], [], max(0.0, limit - time.monotonic()))[0]
            piece = stream.read(1 << 20) if ready else b""
            if not piece:
                return None
            read += piece
            if len(read) > self._answer_bytes:
                raise CalculationError(
                    f"The values of the workbook have more than {self._answer_bytes >> 20} MB."
                )
        return bytes(read)

    def _end(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                assert stream is not None
                stream.close()
            self._process = None
        if self._folder is not None:
            self._folder.remove()
            self._folder = None


@functools.cache
def office() -> Office:
    """Return the one LibreOffice of this process; it ends with it."""
    made = Office()
    atexit.register(made.close)
    return made


def check_programs() -> None:
    """Raise `EnvironmentFault` where a program is missing."""
    required_program("soffice", "libreoffice-calc")
    required_program("bwrap", "bubblewrap")


def _sandboxed(folder: Path) -> list[str]:
    """Return the command of the worker: it reads programs and fonts, and writes `folder` alone."""
    soffice = required_program("soffice", "libreoffice-calc")
    worker = Path(__file__).with_name("worker.py")
    arguments = [
        required_program("bwrap", "bubblewrap"),
        "--unshare-all",
        "--die-with-parent",
        "--new-session",
    ]
    for path in (*_READ_ONLY, *_PROGRAMS):
        arguments += ["--ro-bind-try", path, path]
    arguments += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    arguments += ["--bind", str(folder), str(folder), "--ro-bind", str(worker), "/worker.py"]
    arguments += ["--clearenv", "--setenv", "HOME", str(folder), "--setenv", "LANG", "C.UTF-8"]
    arguments += ["--setenv", "PATH", "/usr/bin:/bin", "--chdir", str(folder)]
    return [*arguments, PYTHON, "-I", "/worker.py", soffice, str(folder)]
