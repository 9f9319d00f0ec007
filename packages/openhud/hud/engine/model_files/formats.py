"""Port of model files: formats that keep a whole model in one file, by entry points of the group `hud.model_files`.

A model of such a file is added as the Hugging Face folder that the format writes of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from hud.errors import UsageError
from hud.plugs import load_all

GROUP = "hud.model_files"


class ModelFileFormat(ABC):
    """A format of model files."""

    suffix: ClassVar[str]
    """Ending of its files' names, in lower case, such as `.gguf`."""

    @abstractmethod
    def reads(self, path: Path) -> bool:
        """Return True for an existing file of this format, by its name or its first bytes."""

    @abstractmethod
    def convert(self, path: Path, folder: Path, *, dtype: str | None = None) -> None:
        """Write the model of a file to an existing, empty folder, in the Hugging Face layout.

        `dtype`: float32 or bfloat16; None: that of the file. Raises `UsageError` for a file that cannot be read, or not exactly.
        """

    def write(self, folder: Path, path: Path, *, dtype: str | None = None) -> None:
        """Write the model of a Hugging Face folder to a new file.

        `dtype`: float32, float16 or bfloat16; None: that of the folder. Raises `UsageError` for a model that the format cannot
        hold exactly, and for a format that is only read.
        """
        raise UsageError(f"Files of the format {self.suffix} are read here, and not written.")


def model_file_formats() -> list[ModelFileFormat]:
    """Return the registered formats. Raises `UsageError` for one that cannot be imported."""
    return list(load_all(GROUP, ModelFileFormat).values())  # type: ignore[type-abstract]


def format_named(name: str) -> ModelFileFormat:
    """Return a format by the name of its entry point. Raises `UsageError`, with the names, for another one."""
    formats = load_all(GROUP, ModelFileFormat)  # type: ignore[type-abstract]
    if name not in formats:
        raise UsageError(
            f"There is no format {name!r}; there are hf, peft, {', '.join(sorted(formats))}."
        )
    return formats[name]


def format_of(path: Path) -> ModelFileFormat | None:
    """Return the format that reads a path; None for a folder, a missing file and any other one."""
    if not path.is_file():
        return None
    return next((form for form in model_file_formats() if form.reads(path)), None)


def is_named_as_file(path: Path) -> bool:
    """Return True for a path with the ending of a registered format, whether it is there or not."""
    return any(path.suffix.lower() == form.suffix for form in model_file_formats())
