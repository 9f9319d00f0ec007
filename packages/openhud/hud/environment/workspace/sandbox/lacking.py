"""Features of the kernel on which a sandbox's promises rest, and which promise is off without them."""

from __future__ import annotations

import ctypes
import logging
from functools import cache

_logger = logging.getLogger("hud.environment")
_NO_NAMESPACES = ("namespace", "uid map", "gid map", "RTM_NEWADDR", "Can't mount proc")
"""Parts of bubblewrap's messages where the kernel refuses namespaces."""
_LANDLOCK_CREATE_RULESET, _VERSION, _FIRST_WITH_REFER = 444, 1, 2


def explained(last_output: str) -> str:
    """Return the last output of bubblewrap, or of what mounts its overlay, with what it means where namespaces are refused."""
    is_theirs = "bwrap:" in last_output or "overlay:" in last_output
    if not is_theirs or not any(part in last_output for part in _NO_NAMESPACES):
        return last_output
    return (
        f"{last_output} (This machine gives its user no namespaces. Without them there is no sandbox: commands would reach the "
        "machine's files, processes and network, so nothing is run. See 'How it holds' in docs/workspace.md.)"
    )


@cache
def warn_without_groups() -> None:
    """Log, once, which limits of workspaces do not hold as documented without control groups."""
    _logger.warning(
        "Workspaces have no control groups here: memory_mb limits each process, not all of a workspace together, and "
        "processors is not limited; browsers and displays have no limit of memory. On a machine with systemd: "
        "systemd-run --user --scope -p Delegate=yes COMMAND"
    )


@cache
def warn_without_landlock() -> None:
    """Log, once, what processes of a workspace can do to each other on a kernel without Landlock."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(_LANDLOCK_CREATE_RULESET, None, 0, _VERSION) < _FIRST_WITH_REFER:
        _logger.warning(
            "This kernel has no Landlock of version 2 (5.19): processes of one workspace can write each other's memory. "
            "What an agent leaves running beside a grader (keeps_running=True) can change its result."
        )
