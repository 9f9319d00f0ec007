"""Tools of the task for client libraries, which have none of their own: files of the working folder, and commands in it."""

import subprocess
from pathlib import Path

TASK = "Mend total.py so that check.py passes."


def read_file(path: str) -> str:
    """Read a file.

    Args:
        path: Path of the file.
    """
    return Path(path).read_text()


def edit_file(path: str, old: str, new: str) -> str:
    """Replace a text in a file.

    Args:
        path: Path of the file.
        old: Text to replace.
        new: Text in its place.
    """
    Path(path).write_text(Path(path).read_text().replace(old, new))
    return "replaced"


def run_command(command: str) -> str:
    """Run a shell command.

    Args:
        command: The command.
    """
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    return done.stdout + done.stderr


TOOLS = [read_file, edit_file, run_command]
