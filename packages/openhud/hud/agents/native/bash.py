"""`BashTool`: a shell over SSH, one for each run, which keeps its working directory and variables."""

from __future__ import annotations

import asyncio
from typing import Any

from hud.agents.native.arguments import parsed
from hud.capabilities.shell.bash import Outcome, Shell
from hud.capabilities.shell.ssh import SSHClient
from hud.trace import TextContent, ToolResult, ToolSpec

COMMAND_SECONDS = 120.0
MOST_SECONDS = 3600.0
RENEWED = (
    "[The machine was replaced before this command. Files are as they were; the shell began anew in its first folder, and "
    "programs that you had left running have ended.]"
)

_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "command": {"type": "string", "description": "The bash command to run."},
        "timeout": {
            "type": "number",
            "description": f"Seconds that it may take; {COMMAND_SECONDS:g} where none are given.",
        },
        "restart": {"type": "boolean", "description": "True to begin with a new shell instead."},
    },
}
_DESCRIPTION = (
    "Run a command in a bash shell. The shell stays: its folder and its variables are those that the last command "
    "left. A command that takes longer than its timeout is stopped together with the shell, and the next begins a "
    "new one; start what is to go on running with & at its end."
)


class BashTool:
    """A `RunTool` over an SSH connection."""

    def __init__(self, client: SSHClient, *, name: str = "bash", renewed: bool = False) -> None:
        """`renewed`: the run goes on from a snapshot, so the agent knows another shell; the first result says so."""
        self.spec = ToolSpec(
            name=name, description=_DESCRIPTION, parameters=_PARAMETERS, native="bash"
        )
        self._client = client
        self._renewed = renewed
        self._shell: Shell | None = None
        self._one_at_a_time = asyncio.Lock()

    async def call(
        self, arguments: dict[str, Any] | str, timeout: float | None = None
    ) -> ToolResult:
        """Run `arguments["command"]`; a nonzero exit status is part of the result, and no error."""
        wanted = parsed(arguments)
        if isinstance(wanted, ToolResult):
            return wanted
        command, restart = wanted.get("command"), wanted.get("restart")
        if not restart and not isinstance(command, str):
            return ToolResult.of_text("`command` must be the bash command to run.", is_error=True)
        seconds = wanted.get("timeout") or COMMAND_SECONDS
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
            return ToolResult.of_text(
                "`timeout` must be a positive number of seconds.", is_error=True
            )
        seconds = min(seconds, MOST_SECONDS if timeout is None else timeout)
        async with self._one_at_a_time:
            if restart:
                self._end()
                if not command:
                    return ToolResult.of_text("A new shell is there.")
            if self._shell is None or not self._shell.alive:
                self._shell = await self._client.shell()
            result = _told(await self._shell.run(str(command), seconds), seconds)
            if self._renewed:
                self._renewed = False
                result.content.append(TextContent(text=RENEWED))
            return result

    def _end(self) -> None:
        if self._shell is not None:
            self._shell.close()
        self._shell = None


def _told(outcome: Outcome, seconds: float) -> ToolResult:
    text = outcome.output.rstrip("\n")
    if outcome.timed_out:
        note = f"[The command was stopped after {seconds:g} s, and the shell with it; the next command begins a new one.]"
    elif outcome.shell_ended:
        how = "" if outcome.exit_status is None else f" with status {outcome.exit_status}"
        note = f"[The shell ended{how}; the next command begins a new one.]"
    elif outcome.exit_status:
        note = f"[exit status {outcome.exit_status}]"
    else:
        return ToolResult.of_text(text or "[no output]")
    return ToolResult.of_text(f"{text}\n{note}" if text else note, is_error=outcome.timed_out)
