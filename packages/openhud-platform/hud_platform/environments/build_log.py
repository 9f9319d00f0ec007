"""Log of a build: written to the store as it arrives, bounded, without secrets."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hud_platform.environments.build_queue import Build, Builds

MOST_LINES = 20_000
LONGEST_LINE = 4000
_SHORTEST_SECRET = 4
"""Shorter values would be hidden in every other word."""


class BuildLog:
    """The log of one attempt at a build."""

    def __init__(
        self, builds: Builds, build: Build, private: Mapping[str, Mapping[str, str]]
    ) -> None:
        self._builds, self._build = builds, build
        self._next = 1
        self.last = ""
        self.source = ""
        """Path of the source on the server; not shown."""
        self._secrets: list[str] = []
        for kind in private.values():
            self.add_secrets(kind.values())

    def add_secrets(self, values: Iterable[str]) -> None:
        """Hide these values too."""
        # Of a value of several lines, each line is hidden: a log is written by lines.
        parts = {part for value in values for part in (value, *value.splitlines())}
        secrets = {part for part in parts if len(part) >= _SHORTEST_SECRET} | {*self._secrets}
        self._secrets = sorted(secrets, key=len, reverse=True)

    async def say(self, *lines: str) -> None:
        """Write lines, as long as there is room."""
        await self._write(lines[: max(0, MOST_LINES - self._next)])
        if self._next <= MOST_LINES < self._next + len(lines):
            await self._write(["What it says from here on is left out."])

    async def conclude(self, line: str) -> None:
        """Write a last line, for which there always is room."""
        if self.hide(line) != self.last:
            await self._write([line])

    def hide(self, text: str) -> str:
        """Return text without private values and places."""
        for secret in self._secrets:
            text = text.replace(secret, "•••")
        text = text.replace("\0", "")  # No database keeps it.
        return text.replace(self.source, "") if self.source else text

    async def _write(self, lines: Iterable[str]) -> None:
        shown = [self.hide(line)[:LONGEST_LINE] for line in lines]
        if shown:
            first, self._next = self._next, self._next + len(shown)
            self.last = shown[-1]
            await asyncio.to_thread(self._builds.say, self._build, first, shown)


class Tail:
    """The last lines of what a command printed."""

    def __init__(self, most: int = 50) -> None:
        self.lines: deque[str] = deque(maxlen=most)

    def reason(self) -> str | None:
        """The line that says what went wrong: the last that calls itself an error, or else the last of all."""
        printed = [line for line in reversed(self.lines) if line.strip()]
        errors = (line for line in printed if line.lower().lstrip().startswith("error"))
        return next(errors, printed[0] if printed else None)
