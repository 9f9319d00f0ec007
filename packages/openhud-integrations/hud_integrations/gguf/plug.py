"""The entry point `gguf` of `hud.model_files`."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from hud.engine.model_files.formats import ModelFileFormat
from hud.errors import UsageError
from hud_integrations.gguf.conversion_process import convert_gguf


class GgufFormat(ModelFileFormat):
    """GGUF."""

    suffix = ".gguf"

    def reads(self, path: Path) -> bool:
        """Return True for a file with GGUF's name or its first bytes."""
        with path.open("rb") as file:
            return path.suffix.lower() == self.suffix or file.read(4) == b"GGUF"

    def convert(self, path: Path, folder: Path, *, dtype: str | None = None) -> None:
        """Convert a file in a process with limits; float32 for one whose matrices are float32, else bfloat16."""
        convert_gguf(path, folder, dtype=dtype)

    def write(self, folder: Path, path: Path, *, dtype: str | None = None) -> None:
        """Write a folder of the families that are read, in float32, float16 or bfloat16. Raises `UsageError` without `gguf`."""
        if importlib.util.find_spec("gguf") is None:
            raise UsageError("Writing GGUF needs the gguf package: pip install 'openhud[train]'.")
        from hud_integrations.gguf.model_writing import write_model_file

        write_model_file(folder, path, dtype=dtype)


gguf = GgufFormat()
