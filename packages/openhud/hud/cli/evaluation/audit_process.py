"""Command line of an audit's process: that of an evaluation of the same tasks.

An environment can read the command lines of the processes above it, in `/proc`. So `hud audit` replaces its process by one
that is named `hud eval TASKS AGENT`, and passes its own arguments in a file in memory, which is closed when they are read.
Linux only; elsewhere the process keeps its command line.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

_DESCRIPTOR = 1000
_FILE = "hud-arguments"
_NAME = Path("/proc/self/comm")
"""Name of this process: that of a script would become the interpreter's."""
_AGENT = "claude"
"""Agent of the shown evaluation, for an audit without a solver."""


def disguised(arguments: list[str]) -> list[str]:
    """Return the arguments of this process; for an audit, replace the process first. Does not return then."""
    passed = _passed()
    if passed is not None:
        return passed
    if arguments[:1] == ["audit"] and not {"-h", "--help"} & set(arguments):
        _replace(arguments)
    return arguments


def _passed() -> list[str] | None:
    """Return the arguments that the replaced process has passed; None where there is none."""
    try:
        if _FILE not in os.readlink(f"/proc/self/fd/{_DESCRIPTOR}"):
            return None
    except OSError:
        return None
    with open(_DESCRIPTOR, "rb") as file:
        file.seek(0)
        name, arguments = json.load(file)
    _NAME.write_text(name)
    return list(arguments)


def _replace(arguments: list[str]) -> None:
    """Replace this process by itself with another command line; no effect where the system cannot."""
    started = sys.orig_argv[: len(sys.orig_argv) - len(arguments)]
    if not hasattr(os, "memfd_create") or len(started) < 2:
        return
    try:
        file = os.memfd_create(_FILE)
        os.write(file, json.dumps([_NAME.read_text().rstrip("\n"), arguments]).encode())
        os.dup2(file, _DESCRIPTOR)  # Inheritable; the first one closes by itself.
        os.execv(sys.executable, [*started, "eval", *shown(arguments)])
    except OSError:
        return


def shown(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of `hud eval` that play the same tasks."""
    from hud.cli.evaluation.audit import command  # Imports click's declarations, for audits only.

    context = command.make_context("audit", list(arguments[1:]), resilient_parsing=True)
    values = context.params
    source = [values["source"]] if values.get("source") else []
    benchmark = ["--benchmark", values["benchmark"]] if values.get("benchmark") else []
    return [*benchmark, *source, values.get("solver") or _AGENT, "--all"]
