"""`Shell`: a remote bash over SSH that keeps its state between commands."""

from __future__ import annotations

import asyncio
import re
import secrets
import shlex
from contextlib import suppress
from dataclasses import dataclass

import asyncssh

MOST_CHARACTERS = 30_000
"""Characters of a command's output; the middle of a longer one is omitted."""
_READ_BYTES = 1 << 16
_MARK_BYTES = 80
_LAST_WORDS_SECONDS = 5.0


@dataclass(frozen=True)
class Outcome:
    """Output of a command, stderr included, and its exit."""

    output: str
    exit_status: int | None
    """Exit status; None after a time-out, or if the command ended the shell."""
    shell_ended: bool = False
    timed_out: bool = False


class Shell:
    """A running bash; after `shell_ended` or `timed_out` it has exited."""

    def __init__(self, process: asyncssh.SSHClientProcess[bytes], cwd: str | None) -> None:
        self._process = process
        self._first = "" if cwd is None else f"cd -- {shlex.quote(cwd)}\n"
        self.alive = True

    async def run(self, command: str, timeout: float | None) -> Outcome:
        """Run one command; after `timeout` seconds it is killed together with the shell."""
        mark = secrets.token_hex(16)
        # One line, so one write that output of the background cannot part; its halves lie apart where `set -x` shows them.
        # The command is one argument, even with unbalanced quotes, and does not read the following lines as input.
        first, self._first = self._first, ""
        script = f"{first}eval {shlex.quote(command)} </dev/null 2>&1\nprintf '%s%s %d\\n' {mark[:16]} {mark[16:]} $?\n"
        output = _Output(mark.encode())
        try:
            async with asyncio.timeout(timeout):
                self._process.stdin.write(script.encode())
                await self._process.stdin.drain()
                while not output.done:
                    data = await self._process.stdout.read(_READ_BYTES)
                    if not data:
                        return await self._ended(output)
                    output.add(data)
        except TimeoutError:
            self.close()
            return Outcome(output.text(), None, shell_ended=True, timed_out=True)
        except (BrokenPipeError, asyncssh.Error, ConnectionError):
            return await self._ended(output)
        except BaseException:
            self.close()  # Its remaining output would be read as the next command's.
            raise
        return Outcome(output.text(), output.exit_status)

    async def _ended(self, output: _Output) -> Outcome:
        self.alive = False
        with suppress(asyncssh.Error, OSError, TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_SECONDS):
                while data := await self._process.stdout.read(_READ_BYTES):
                    output.add(data)
                await self._process.wait_closed()
        return Outcome(output.text(), self._process.exit_status, shell_ended=True)

    def close(self) -> None:
        """Kill the shell and its processes."""
        self.alive = False
        with suppress(OSError, asyncssh.Error):
            self._process.kill()
        self._process.close()


class _Output:
    """A command's output up to its end marker; of a long one, the beginning and the end."""

    def __init__(self, mark: bytes) -> None:
        self._mark = re.compile(mark + b" ([0-9]{1,3})\n")
        self._first = bytearray()
        self._last = bytearray()
        self._left_out = 0
        self.exit_status = 0
        self.done = False

    def add(self, data: bytes) -> None:
        self._last += data
        if (ended := self._mark.search(self._last)) is not None:
            self.exit_status = int(ended[1])
            # What follows is of programs in the background.
            del self._last[ended.start() : ended.end()]
            self.done = True
        half = MOST_CHARACTERS // 2
        if len(self._first) < half:
            moved = max(0, min(half - len(self._first), len(self._last) - _MARK_BYTES))
            self._first += self._last[:moved]
            del self._last[:moved]
        over = len(self._last) - half - _MARK_BYTES
        if over > 0:
            self._left_out += over
            del self._last[:over]

    def text(self) -> str:
        first, last = self._first, self._last
        if not self._left_out:
            return bytes(first + last).decode("utf-8", "replace")
        left = f"\n[{self._left_out} bytes of output are left out here]\n"
        return first.decode("utf-8", "replace") + left + last.decode("utf-8", "replace")
