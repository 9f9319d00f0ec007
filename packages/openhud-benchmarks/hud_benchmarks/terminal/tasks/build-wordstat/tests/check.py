"""Builds the agent's sources with the release's Makefile in a fresh folder, and runs the program."""

import random
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from confined import TESTS, hide_tests, output_of, write_reward

SOURCE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.[ch]")
"""Name of a source: make reads other names as rules, and the shell as commands."""


def expected(text: str) -> str:
    words = text.split()
    longest = max(words, key=len, default="-")
    lines = text.count("\n") + (text != "" and not text.endswith("\n"))
    length = len(longest) if words else 0
    return f"lines {lines}\nwords {len(words)}\nbytes {len(text)}\nlongest {longest} {length}\n"


def built(folder: Path) -> str | None:
    """Return the path of the program; None where it does not build."""
    (folder / "src").mkdir()
    for path in Path("/app/src").iterdir():
        if path.suffix in (".c", ".h") and not SOURCE.fullmatch(path.name):
            return None
        if path.suffix in (".c", ".h") and path.is_file() and not path.is_symlink():
            shutil.copy(path, folder / "src")
    shutil.copy(TESTS / "Makefile", folder)
    hide_tests()  # Sources could include them.
    made = subprocess.run(["make", "-C", str(folder)], capture_output=True, timeout=60)
    return str(folder / "bin/wordstat") if made.returncode == 0 else None


def texts() -> list[str]:
    draw = random.Random()
    made = ["", "\n", "word", "a bee\nsees\n", "  two\t words ", "x" * 500 + " y\n"]
    for _ in range(40):
        words = ["".join(draw.choices("abcdefg.", k=draw.randint(1, 90))) for _ in range(30)]
        made.append("".join(word + draw.choice([" ", "\n", "  ", "\t\n"]) for word in words))
    return made


def main() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        program = built(Path(folder))
        right = program is not None and all(
            output_of([program], text) == expected(text) for text in texts()
        )
    write_reward(float(right))


main()
