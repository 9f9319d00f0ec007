"""Reach of an agent's tools: the environment's source, the task's arguments, other processes.

An agent that has a shell, or a tool that opens files or runs code, gets as far as the process behind the tool does. The
probes look for what no agent of the task should see: lines of the environment's source, hidden arguments, and a canary: the mark
of the process that plays, a random value in its environment variables, which evaluations have as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hud.audit.knowledge import hidden_arguments, source_files
from hud.audit.tool_calls import MOST_CALLS, SHELL, instance, string_parameters
from hud.audit.turns import call_in_turns
from hud.processes.process_mark import process_mark
from hud.trace import ToolCall

if TYPE_CHECKING:
    from hud.environment import Task
    from hud.trace import ToolSpec

SOURCE_LINES = 3
"""Lines of the environment's source that an output must hold to count as showing it."""
_LONG_LINE = 40

_NO_FILES = ("computer", "editor")
"""Native tools that run no commands on files of this machine."""
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
    """The mark of this process, and the search for it."""

    def __init__(self) -> None:
        self.name, self.value = process_mark()
        self.searched: set[str] = set()
        """Environments from which memory was searched for it: once is enough, as it takes long."""


async def probe(run: Any, task: Task, canary: Canary) -> str:
    """Call the tools with everything that may reach too far; return their output."""
    memory = task.env not in canary.searched
    canary.searched.add(task.env)
    files = [str(file) for file in source_files(task.environment)]
    probes = (
        ToolCall(name=spec.name, arguments=arguments)
        for spec in list(run.tools)
        if not spec.delegated and spec.native not in _NO_FILES
        for arguments in _probes(spec, files, canary if memory else None)
    )
    results = await call_in_turns(run, list(islice(probes, MOST_CALLS)))
    return "\n".join(result.text for result in results)


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
