"""Conversion of a GGUF file in a process with limits."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from hud.errors import UsageError
from hud.processes.limited import run_limited

MEMORY = 8 << 30
"""Memory of a conversion, in bytes, apart from the mapped file."""
CPU_SECONDS = 300
"""Processor time of a conversion, and as much again for each GiB of the file."""
REFUSED = 3
"""Exit status with a sentence on the standard output."""


def convert_gguf(path: Path, folder: Path, *, dtype: str | None = None) -> None:
    """Write the model of a GGUF file to an existing, empty folder, in the Hugging Face layout.

    `dtype`: float32 or bfloat16; None: float32 for a file whose matrices are float32, else bfloat16.
    Raises `UsageError` for a file that cannot be read, or not exactly.
    """
    if importlib.util.find_spec("gguf") is None:
        raise UsageError("Reading GGUF needs the gguf package: pip install 'openhud[train]'.")
    module = f"{__package__}.conversion"
    seconds = int(CPU_SECONDS * (1 + path.stat().st_size / (1 << 30)))
    done = run_limited(module, str(path), str(folder), dtype or "", memory=MEMORY, seconds=seconds)
    if done.returncode == REFUSED:
        raise UsageError(done.stdout)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        if "MemoryError" in last[0] or "not enough memory" in last[0]:
            last = [f"it needs more than {MEMORY >> 30} GiB of memory"]
        elif done.returncode < 0:
            last = [f"it takes more than {seconds} s of processor time"]
        raise UsageError(f"{path} cannot be read: {last[0]}. Use another GGUF file of the model.")
