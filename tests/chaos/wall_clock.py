"""Wall clocks that can be set, for processes of their own: a shim of the C library's, compiled where there is a compiler."""

import shutil
import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")
COMPILER = shutil.which("cc")


class WallClock:
    """The wall clock of the processes that have its `variables`."""

    def __init__(self, folder: Path, name: str) -> None:
        self._file = folder / f"{name}.clock"
        self.variables: dict[str, str] = {}
        """Environment variables; none without a compiler."""
        self.set(0)
        if COMPILER is not None:
            self.variables = {"LD_PRELOAD": str(_shim(folder)), "WALL_CLOCK": str(self._file)}

    def set(self, seconds: int) -> None:
        """Let the clock be so many seconds ahead of the machine's."""
        # In place: the processes have the file mapped.
        with self._file.open("r+b" if self._file.exists() else "w+b") as file:
            file.write(struct.pack("=q", seconds))


def _shim(folder: Path) -> Path:
    library = folder / "wall_clock.so"
    if not library.exists():
        command = [
            str(COMPILER),
            "-O1",
            "-shared",
            "-fPIC",
            "-o",
            str(library),
            str(SOURCE),
            "-ldl",
        ]
        subprocess.run(command, check=True)
    return library
