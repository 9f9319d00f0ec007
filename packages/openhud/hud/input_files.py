"""Files that a user names: settings, tasks, prompts. What cannot be read is one sentence with the file's name."""

from __future__ import annotations

from pathlib import Path

from hud.errors import UsageError

MOST_TEXT_BYTES = 4 << 20
MOST_ROWS_BYTES = 1 << 30


def read_input(path: Path, most: int = MOST_ROWS_BYTES) -> bytes:
    """Return the content of a file. Raises `UsageError` for what cannot be read, and for one of more than `most` bytes."""
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except FileNotFoundError:
        raise UsageError(f"There is no file {path}.") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
    if len(content) > most:
        raise UsageError(f"{path} has more than {most >> 20:,} MiB, which are not read.")
    return content


def read_input_text(path: Path, most: int = MOST_TEXT_BYTES) -> str:
    """Return the text of a file. Raises `UsageError` as `read_input`, and for what is no UTF-8."""
    content = read_input(path, most)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError(
            f"{path}:{line}: this is no text in UTF-8; save the file in UTF-8."
        ) from None
