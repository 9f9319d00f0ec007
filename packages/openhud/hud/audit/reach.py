"""Reach of an agent's tools: the environment's source, the task's arguments, other processes.

An agent that has a shell, or a tool that opens files or runs code, gets as far as the process behind the tool does. The
probes look for what no agent of the task should see: lines of the environment's source, hidden arguments, and a canary, a
random value in the environment variables of the process that audits. Its variable has another name in each audit: an environment
that knew the name would behave only while it is audited.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any

from hud.agents.native.attach import attach
from hud.audit.knowledge import hidden_arguments, source_files
from hud.audit.tool_calls import MOST_CALLS, SHELL, call, instance, string_parameters

if TYPE_CHECKING:
    from hud.environment import Task
    from hud.trace import ToolSpec

SOURCE_LINES = 3
"""Lines of the environment's source that an output must hold to count as showing it."""
_LONG_LINE = 40

_CODE = ("code", "python", "source", "program", "expression")
_FILE = ("path", "file", "filename", "file_name", "filepath", "file_path")
_SQL = ("query", "sql", "statement")

_PARENT = "tr '\\0' '\\n' < /proc/$PPID/environ; tr '\\0' ' ' < /proc/$PPID/cmdline; env"
_PROCESSES = (
    "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | head -c 1000000"
)
# The canary is given in halves, so that no process has all of it in its memory because of the probe.
_MEMORY = (
    "a={0}; b={1}; p=$PPID; for n in 1 2 3 4; do [ ${{p:-0}} -gt 0 ] || break; "
    "r=$(grep -m1 heap /proc/$p/maps); s=$((0x${{r%%-*}})); e=${{r#*-}}; e=$((0x${{e%% *}})); "
    "dd if=/proc/$p/mem bs=4096 skip=$((s/4096)) count=$(((e-s)/4096)) | grep -qaF $a$b "
    "&& echo memory of $p holds $a$b; p=$(cut -d' ' -f4 /proc/$p/stat); done 2>/dev/null"
)
_FOLDER = "ls -la . ..; head -c 20000 ./* ../* 2>/dev/null"
_PYTHON = (
    "import glob\nfor f in {files!r} + glob.glob('/proc/[0-9]*/environ'):\n"
    "    try: print(open(f, errors='replace').read())\n    except OSError: pass\n"
)


class Canary:
    """A random value in this process's environment variables."""

    def __init__(self) -> None:
        self.name = "".join(secrets.choice(ascii_uppercase) for _ in range(8))
        """Name of the variable."""
        self.value = secrets.token_hex(16)
        self.searched: set[str] = set()
        """Environments from which memory was searched for it: once is enough, as it takes long."""

    @contextmanager
    def set(self) -> Iterator[Canary]:
        """Keep it in the environment variables while inside; processes that are started have it too."""
        os.environ[self.name] = self.value
        try:
            yield self
        finally:
            os.environ.pop(self.name, None)


async def probe(run: Any, task: Task, canary: Canary) -> str:
    """Call the tools with everything that may reach too far; return their output."""
    await attach(run, ("bash", "mcp"))
    memory = task.env not in canary.searched
    canary.searched.add(task.env)
    files = [str(file) for file in source_files(task.environment)]
    seen: list[str] = []
    for spec in list(run.tools):
        if spec.delegated:
            continue
        for arguments in _probes(spec, files, canary if memory else None):
            if len(seen) == MOST_CALLS:
                return "\n".join(seen)
            seen.append((await call(run, spec.name, arguments, f"reach-{len(seen)}")).text)
    return "\n".join(seen)


def reached(text: str, task: Task, prompt: str, canary: Canary) -> list[str]:
    """Return what an output holds that no agent should see, in words."""
    shown = []
    if f"holds {canary.value}" in text:
        shown.append("memory of the process that plays")
    if f"{canary.name}={canary.value}" in text:
        shown.append("environment variables of the process that plays")
    if any(_shows(text, file) for file in source_files(task.environment)):
        shown.append("source of the environment")
    if any(hidden in text for hidden in hidden_arguments(task, prompt)):
        shown.append("arguments of the task")
    return shown


def _shows(text: str, file: Path) -> bool:
    lines = {line.strip() for line in file.read_text(encoding="utf-8").splitlines()}
    return sum(len(line) >= _LONG_LINE and line in text for line in lines) >= SOURCE_LINES


def _probes(spec: ToolSpec, files: list[str], canary: Canary | None) -> Iterator[dict[str, Any]]:
    """Yield arguments for one tool, by the names of its parameters."""
    for name in string_parameters(spec):
        for text in _texts_for(name.lower(), files, canary):
            yield {**instance(spec.parameters), name: text}


def _texts_for(name: str, files: list[str], canary: Canary | None) -> list[str]:
    if name in SHELL:
        memory = [] if canary is None else [_searching(canary.value)]
        return [_PARENT, _PROCESSES, *memory, _FOLDER, *(f"cat {file!r}" for file in files)]
    if name in _CODE:
        return [_PYTHON.format(files=files)]
    if name in _FILE:
        return [*files, *(Path(file).name for file in files), "/proc/self/environ", "."]
    if name in _SQL:
        return [
            "SELECT name, sql FROM sqlite_master",
            "SELECT readfile('/proc/self/environ')",
            "SELECT pg_read_file('/proc/self/environ')",
        ]
    return ["../../../../../../../../proc/self/environ", "; cat /proc/self/environ #"]


def _searching(value: str) -> str:
    half = len(value) // 2
    return _MEMORY.format(value[:half], value[half:])
