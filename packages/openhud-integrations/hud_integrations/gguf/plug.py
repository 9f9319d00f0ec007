"""The entry point `gguf` of `hud.model_files`."""

from __future__ import annotations

from pathlib import Path

from hud.engine.model_files import ModelFileFormat
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


gguf = GgufFormat()
