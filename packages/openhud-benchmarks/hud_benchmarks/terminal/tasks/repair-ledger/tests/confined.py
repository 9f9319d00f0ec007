"""Programs that a grader does not trust: they write to no file, start no process, and see no test."""

from __future__ import annotations

import ctypes
import resource
import shutil
import subprocess
from pathlib import Path

TESTS, VERIFIER = Path("/tests"), Path("/logs/verifier")
_PR_SET_DUMPABLE = 4


def hide_tests() -> None:
    """Delete the tests, which are in memory by now, and close this process's memory to others of its user."""
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    for entry in TESTS.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def output_of(command: list[str], stdin: str = "", seconds: float = 10.0) -> str | None:
    """Return what a program wrote; None where it failed, wrote no text, or took longer."""
    try:
        done = subprocess.run(
            command,
            input=stdin.encode(),
            capture_output=True,
            timeout=seconds,
            preexec_fn=_confine,
            start_new_session=True,
        )
        return done.stdout.decode() if done.returncode == 0 else None
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def write_reward(reward: float) -> None:
    """Write the reward, and nothing else, to a fresh folder."""
    if VERIFIER.is_symlink():
        VERIFIER.unlink()
    shutil.rmtree(VERIFIER, ignore_errors=True)
    VERIFIER.mkdir(parents=True, exist_ok=True)
    (VERIFIER / "reward.txt").write_text(f"{reward}\n")


def _confine() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
