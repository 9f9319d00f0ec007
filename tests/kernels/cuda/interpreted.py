"""Checks in Triton's interpreter, which needs no GPU; each is a script in a process of its own."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

needs_triton = pytest.mark.skipif(
    find_spec("triton") is None, reason="triton is not installed: pip install triton"
)


def check(script: str, *, interpret: bool = True, seconds: float = 300) -> None:
    """Run a script that prints `alike` at its end. Triton reads the variable when it is imported."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={
            **os.environ,
            "TRITON_INTERPRET": "1" if interpret else "0",
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.stdout.strip() == "alike", done.stderr
