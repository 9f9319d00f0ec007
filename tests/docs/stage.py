"""The place in which a page's blocks run: a folder, a home, models, servers, and one state of shell and Python."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import linecache
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.docs.blocks import ROOT, Block, matches

from hud.client import disconnect

SMALLER = [
    (r"--steps \d+", "--steps 1"),
    (r"^steps = \d+", "steps = 1"),
    (r"\brange\(\d\d+\)", "range(1)"),
    (r"--group \d+", "--group 2"),
    (r"--nproc-per-node \d+", "--nproc-per-node 1"),
]
"""Sizes cost time and change nothing that a block shows; all else runs as it is written."""

PRELUDE = r"""
set -e -o pipefail
AT_A_TERMINAL='import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))'
hud() {
  case "$1 $*" in
    *" --help"*) "$HUD" "$@" ;;
    *" --stdio"*) "$HUD" "$@" </dev/null ;;
    "eval eval "*" human"*) python -c "$AT_A_TERMINAL" "$HUD" "$@" ;;
    "up "*|"view "*|"serve "*|"dev "*) on_a_free_port "$@" ;;
    "fleet fleet join "*) serve_beside "$@" ;;
    *) "$HUD" "$@" ;;
  esac
}
# Begin a server on a free port, whichever port the page names.
on_a_free_port() {
  local arguments=()
  while [ $# -gt 0 ]; do
    if [ "$1" = --port ]; then shift; else arguments+=("$1"); fi
    shift
  done
  serve_beside "${arguments[@]}" --port 0
}
# Run a command that must end with 1: what it was asked for is held.
held() { local status=0; "$@" || status=$?; [ "$status" = 1 ]; }
# Begin a server on a free port and wait until it says that it is up; it ends with the page.
serve_beside() {
  local log="$STAGE/served.$RANDOM"
  : >"$log"
  "$HUD" "$@" >"$log" 2>&1 &
  echo $! >>"$STAGE/pids"
  local up="Ctrl-C"
  [ "$1" = serve ] && up="HUD_SERVE_PORT=[0-9]+$"
  if ! grep -q -m1 -E "$up" <(tail -n +1 -f --pid=$! "$log"); then cat "$log"; return 1; fi
  [ "$1" = fleet ] && return 0
  export "${1^^}_URL=$(grep -oE 'http://[0-9.]+:[0-9]+' "$log" | head -1)"
  export "${1^^}_PORT=$(grep -oE 'HUD_SERVE_PORT=[0-9]+' "$log" | cut -d= -f2)"
  export "${1^^}_KEY=$(grep -oE 'hud_[A-Za-z0-9_-]{20,}' "$log" | head -1)"
}
# Targets of the Makefile take minutes, and the first makes the environment in which this runs: they are read, not run.
make() { command make -n -C "$ROOT" "$@"; }
# scripts/check-wheel installs it; here its extras are held to be the project's, and other packages to be installed. A page
# installs it from the clone or from the clone's wheel: there is no release. A package that the page wrote is installed beside.
pip() {
  case "$1 $2" in "install ./"*)
    python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --no-index --target "$STAGE/plugs/${2#./}" "$2"
    export PYTHONPATH="$STAGE/plugs/${2#./}${PYTHONPATH:+:$PYTHONPATH}"
    return ;;
  esac
  python - "$@" <<'PY'
import os, re, sys, tomllib
from importlib.metadata import version
from pathlib import Path
from packaging.requirements import Requirement
project = tomllib.load(open(os.environ["ROOT"] + "/pyproject.toml", "rb"))["project"]
wheel = f"dist/{project['name']}-{project['version']}-py3-none-any.whl"
if sys.argv[1:] == ["wheel", "--no-deps", "--wheel-dir", "dist", "."]:
    Path("dist").mkdir()
    Path(wheel).touch()
    sys.exit()
assert sys.argv[1] == "install"
for argument in sys.argv[2:]:
    place, _, extras = argument.partition("[")
    if place in (".", wheel):
        assert set(re.findall(r"[a-z]+", extras)) <= set(project["optional-dependencies"]), argument
    else:
        wanted = Requirement(argument)
        assert wanted.name != project["name"] and version(wanted.name), argument
PY
}
latest_job() { "$HUD" jobs --json | jq -r '.[0].id'; }
latest_run() { "$HUD" jobs "$(latest_job)" --json | jq -r '.traces[0].id'; }
newest_of() { "$HUD" models checkpoints "$1" --json | jq -r '.[-1].id'; }
checkpoint_of() { "$HUD" models checkpoints "$1" --json | jq -r '.[0].id'; }
"""

TASKS = '''"""A world of rooms."""

from hud import Environment

env = Environment("rooms")


@env.tool
async def look(where: str = "around") -> str:
    """Look somewhere."""
    return f"{where}: a door"


@env.tool
async def count(letter: str) -> int:
    """Count a letter."""
    return 3


@env.template()
async def escape(word: str):
    """Find the way out."""
    answer = yield f"Say {word}, and where the door is."
    yield 1.0 if answer in ("a door", "around: a door", "3") else min(0.9, len(answer) / 200)


tasks = [escape(word=word) for word in %r]
'''


@dataclass
class Scene:
    """What a page takes as given."""

    models: tuple[str, ...] = ()
    """Slugs of small models of the reader's own."""
    files: dict[str, str] = field(default_factory=dict)
    stands: dict[str, str] = field(default_factory=dict)
    """Text of the page that stands for something of the reader's, and what it stands for here."""
    names: str = ""
    """Python that comes before the page's own: names that it uses without saying where they come from."""
    check: str = ""
    """Python that comes after it, and asserts what the page says."""
    setup: str = ""
    """Shell that comes before everything: servers that the page takes as running."""
    answers: str = ""
    """Lines on standard input."""
    writes: str | None = None
    """Folder of examples that the page writes into, `examples/NAME`: copied, so that the checkout stays as it is."""
    needs: str = ""
    """A program without which the page's examples cannot work: scripts/setup-worlds installs it."""


class Stage:
    """Runs blocks of one page, in order."""

    def __init__(self, folder: Path, scene: Scene, hud: Path, variables: dict[str, str]) -> None:
        self.folder, self.scene = folder, scene
        self.here = folder / "here"
        self.here.mkdir(parents=True)
        self.home = Path(variables["HUD_HOME"])
        self.variables = {
            **os.environ,
            **variables,
            "HUD": str(hud),
            "STAGE": str(folder),
            "ROOT": str(ROOT),
            "PATH": f"{self.here}/bin:{hud.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "BROWSER": "true",
            "NO_COLOR": "1",
        }
        self.closing = contextlib.ExitStack()
        self.closing.callback(self._end_servers)
        self.names: dict[str, Any] = {
            "__name__": "__main__",
            "variables": self.variables,
            "closing": self.closing,
        }
        for name in ("examples", "scripts", "benchmarks"):
            (self.here / name).symlink_to(ROOT / name)
        if scene.writes is not None:
            self._copy(scene.writes)
        (self.here / ".venv").symlink_to(sys.prefix)
        files = {
            "tasks.py": TASKS % (["red", "green", "blue", "yellow"],),
            "held_out.py": TASKS % (["pink", "brown"],),
            "env.py": TASKS % (["red", "green"],),
            **scene.files,
        }
        for name, text in files.items():
            path = self.here / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            if path.parent.name == "bin":
                path.chmod(0o755)

    async def run(self, block: Block) -> None:
        """Execute a block; raises `AssertionError` that names its place."""
        if block.not_run is not None:
            return
        text = self._as_here(block.text)
        if block.file is not None:
            path = self.here / self._with_variables(block.file)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self._with_variables(text))
            return
        if block.language == "python":
            shown = await self._python(text, block)
        elif block.language == "console":
            for command, expected in _commands(text):
                shown = self._shell(command, block)
                if expected.strip():
                    assert matches(expected, shown), _differs(block, expected, shown)
            return
        elif block.language == "sh":
            shown = self._shell(text, block)
        else:
            raise AssertionError(
                f"{block.place}: nothing runs {block.language!r}. Save it (`<!-- file NAME -->`) for a block that does."
            )
        if block.output is not None:
            assert matches(block.output, shown), _differs(block, block.output, shown)

    async def begin(self, page: str) -> None:
        """Do what the page takes as done."""
        if self.scene.setup:
            self._shell(self.scene.setup, _own(f"setup of {page}", self.scene.setup))
        await self._python(self.scene.names, _own(f"names of {page}", self.scene.names))

    async def check(self, page: str) -> None:
        """Assert what the page says of its blocks."""
        await self._python(self.scene.check, _own(f"check of {page}", self.scene.check))

    def _as_here(self, text: str) -> str:
        for words, stand in self.scene.stands.items():
            text = text.replace(words, stand)
        for pattern, smaller in SMALLER:
            text = re.sub(pattern, smaller, text, flags=re.MULTILINE)
        return text

    def _with_variables(self, text: str) -> str:
        return re.sub(r"\$(\w+)", lambda found: self.variables.get(found[1], found[0]), text)

    async def _python(self, text: str, block: Block) -> str:
        """Run a block as a notebook runs a cell; its lines have the page's numbers."""
        text = self._with_variables(text)
        source = "\n" * (block.line - 1) + text
        file = f"<{block.page}:{block.line}>"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        printed, answers = io.StringIO(), Terminal(self.scene.answers)
        try:
            code = compile(source, file, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            with contextlib.redirect_stdout(printed), pytest.MonkeyPatch.context() as patch:
                patch.setattr(sys, "stdin", answers)
                for name, value in self.variables.items():
                    if name.startswith("HUD_"):  # As a program that is started from the same shell.
                        patch.setenv(name, value)
                if "hud.run(" in text:  # A script: it runs where there is no event loop.
                    await asyncio.to_thread(eval, code, self.names)
                elif inspect.iscoroutine(running := eval(code, self.names)):  # noqa: S307
                    await running
        except Exception as error:
            raise AssertionError(f"{block.place} fails: {error!r}") from error
        return printed.getvalue()

    def _shell(self, text: str, block: Block) -> str:
        """Run a block in bash, in the folder and with the variables that the one before it left."""
        disconnect(self.home)  # What Python has open here would be in the way of other processes.
        left = self.folder / "left"
        trap = f"trap 'env -0 >{shlex.quote(str(left))}' EXIT\n"
        done = subprocess.run(
            ["bash", "-c", PRELUDE + trap + text],
            cwd=self.variables.get("PWD_OF_PAGE", self.here),
            env={name: value for name, value in self.variables.items() if name != "PWD_OF_PAGE"},
            input=self.scene.answers,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, (
            f"{block.place} ends with {done.returncode}:\n{text}\n{done.stdout}"
        )
        pairs = (pair.partition("=") for pair in left.read_text().split("\0") if pair)
        self.variables.clear()
        self.variables.update({name: value for name, _, value in pairs})
        self.variables["PWD_OF_PAGE"] = self.variables["PWD"]
        return done.stdout

    def _copy(self, folder: str) -> None:
        parent, _, name = folder.partition("/")
        (self.here / parent).unlink()
        (self.here / parent).mkdir()
        for one in (ROOT / parent).iterdir():
            if one.name == name:
                shutil.copytree(one, self.here / folder)
            else:
                (self.here / parent / one.name).symlink_to(one)

    def _end_servers(self) -> None:
        """End the page's servers, the last first, as each may need those before it; raises if one goes on."""
        pids = self.folder / "pids"
        for pid in reversed(pids.read_text().split() if pids.exists() else []):
            with contextlib.suppress(psutil.NoSuchProcess):
                server = psutil.Process(int(pid))
                command = " ".join(server.cmdline())
                server.terminate()
                try:
                    server.wait(60)
                except psutil.TimeoutExpired:
                    server.kill()
                    raise AssertionError(
                        f"A minute after SIGTERM this runs on: {command}"
                    ) from None


class Terminal(io.StringIO):
    """Standard input at which a person types."""

    def isatty(self) -> bool:
        return True


def _own(page: str, text: str) -> Block:
    return Block(page=page, line=1, language="python", text=text)


def _commands(text: str) -> list[tuple[str, str]]:
    """Split a session into commands and their outputs."""
    found: list[tuple[str, str]] = []
    for line in text.splitlines(keepends=True):
        if line.startswith("$ "):
            found.append((line[2:], ""))
        else:
            assert found, f"A console block begins with a command, not with {line!r}."
            found[-1] = (found[-1][0], found[-1][1] + line)
    return found


def _differs(block: Block, expected: str, shown: str) -> str:
    return f"{block.place} shows\n{expected}\nand prints\n{shown}"
