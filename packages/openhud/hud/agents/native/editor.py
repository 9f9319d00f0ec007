"""`EditorTool`: viewing and editing of files over SFTP, with the commands of providers' text editor tools."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

from hud.agents.native.arguments import parsed
from hud.capabilities.shell.ssh import SSHClient
from hud.trace import ImageContent, ToolResult, ToolSpec

MOST_CHARACTERS = 30_000
"""Characters shown of a file; the omission of the rest is noted."""
MOST_BYTES = 8 << 20
_MOST_ENTRIES = 500
_PICTURES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
}
"""First bytes of image files, which are shown as images."""
_SHOWN_LINES = 4
"""Context lines shown around an edit."""

_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "command": {"type": "string", "enum": ["view", "create", "str_replace", "insert"]},
        "path": {"type": "string", "description": "Path of a file; of a folder, too, to view it."},
        "view_range": {
            "type": "array",
            "items": {"type": "integer"},
            "description": "For view: the first and the last line to show, from 1; -1 is the file's last.",
        },
        "file_text": {"type": "string", "description": "For create: what the file is to hold."},
        "old_str": {
            "type": "string",
            "description": "For str_replace: the text to replace, which must be there exactly once.",
        },
        "new_str": {"type": "string", "description": "For str_replace: the text instead of it."},
        "insert_line": {
            "type": "integer",
            "description": "For insert: the line after which to insert; 0 is the beginning.",
        },
        "insert_text": {"type": "string", "description": "For insert: the text to insert."},
    },
    "required": ["command", "path"],
}
_DESCRIPTION = (
    "View, create and edit text files. view shows a file with line numbers, a picture, or what a folder holds; create writes a "
    "whole file; str_replace replaces a text that occurs once; insert adds text after a line."
)


class _Wrong(Exception):
    """An invalid request of the model; the message has the reason."""


class EditorTool:
    """A `RunTool` over an SFTP connection."""

    def __init__(self, client: SSHClient, *, name: str = "editor") -> None:
        self.spec = ToolSpec(
            name=name, description=_DESCRIPTION, parameters=_PARAMETERS, native="editor"
        )
        self._client = client

    async def call(
        self, arguments: dict[str, Any] | str, timeout: float | None = None
    ) -> ToolResult:
        """Execute `arguments["command"]`."""
        wanted = parsed(arguments)
        if isinstance(wanted, ToolResult):
            return wanted
        try:
            async with asyncio.timeout(timeout):
                done = await self._do(wanted)
                return done if isinstance(done, ToolResult) else ToolResult.of_text(done)
        except _Wrong as wrong:
            return ToolResult.of_text(str(wrong), is_error=True)
        except TimeoutError:
            return ToolResult.of_text(f"It took longer than {timeout:g} s.", is_error=True)
        except OSError as error:
            return ToolResult.of_text(str(error), is_error=True)

    async def _do(self, wanted: dict[str, Any]) -> str | ToolResult:
        path = _text(wanted, "path")
        match wanted.get("command"):
            case "view":
                return await self._view(path, wanted.get("view_range"))
            case "create":
                return await self._create(path, _text(wanted, "file_text"))
            case "str_replace":
                new = _text(wanted, "new_str") if wanted.get("new_str") is not None else ""
                return await self._replace(path, _text(wanted, "old_str"), new)
            case "insert":
                # The tool's first version named the text `new_str`.
                name = "insert_text" if "insert_text" in wanted else "new_str"
                return await self._insert(path, wanted.get("insert_line"), _text(wanted, name))
            case other:
                raise _Wrong(
                    f"There is no command {other!r}: it is view, create, str_replace or insert."
                )

    async def _view(self, path: str, lines: Any) -> str | ToolResult:
        if await self._client.is_folder(path):
            if lines is not None:
                raise _Wrong(f"{path} is a folder, which has no lines.")
            return await self._listing(path)
        data = await self._client.read(path, MOST_BYTES + 1)
        for magic, kind in _PICTURES.items():
            if data.startswith(magic) and len(data) <= MOST_BYTES:
                picture = base64.b64encode(data).decode()
                return ToolResult(content=[ImageContent(data=picture, mime_type=kind)])
        held = _lines(_decoded(path, data))
        first, last = _range(lines, len(held))
        return _numbered(held, first, last)

    async def _listing(self, path: str) -> str:
        """Return two levels of a folder, without hidden names."""
        shown = [path.rstrip("/") + "/"]
        for entry in await self._client.entries(path):
            if entry.name.startswith("."):
                continue
            inner = f"{path.rstrip('/')}/{entry.name}"
            shown.append(inner + "/" * entry.is_folder)
            if entry.is_folder and len(shown) < _MOST_ENTRIES:
                shown += [
                    f"{inner}/{below.name}" + "/" * below.is_folder
                    for below in await self._client.entries(inner)
                    if not below.name.startswith(".")
                ]
            if len(shown) >= _MOST_ENTRIES:
                return "\n".join([*shown[:_MOST_ENTRIES], "[there is more]"])
        return "\n".join(shown)

    async def _create(self, path: str, text: str) -> str:
        there = await self._client.exists(path)
        await self._client.write(path, text)
        return f"{path} was {'overwritten' if there else 'created'}."

    async def _replace(self, path: str, old: str, new: str) -> str:
        if not old:
            raise _Wrong("`old_str` must not be empty.")
        text = await self._read(path)
        count = text.count(old)
        if count != 1:
            where = "is not there" if not count else f"is there {count} times: give more around it"
            raise _Wrong(
                f"Nothing was replaced in {path}: `old_str` must be there once, but {where}."
            )
        at = text.index(old)
        await self._client.write(path, text[:at] + new + text[at + len(old) :])
        line = text.count("\n", 0, at) + 1
        return self._edited(path, text[:at] + new + text[at + len(old) :], line, new)

    async def _insert(self, path: str, line: Any, text: str) -> str:
        text_before = await self._read(path)
        held = _lines(text_before)
        if isinstance(line, bool) or not isinstance(line, int) or not 0 <= line <= len(held):
            raise _Wrong(f"`insert_line` must be from 0 to {len(held)}, the lines of {path}.")
        added = _lines(text) or [""]
        ends_so = text_before.endswith("\n") or (line == len(held) and text.endswith("\n"))
        changed = "\n".join([*held[:line], *added, *held[line:]]) + "\n" * ends_so
        await self._client.write(path, changed)
        return self._edited(path, changed, line + 1, text)

    async def _read(self, path: str) -> str:
        return _decoded(path, await self._client.read(path, MOST_BYTES + 1))

    def _edited(self, path: str, text: str, line: int, new: str) -> str:
        held = _lines(text)
        first = max(1, line - _SHOWN_LINES)
        last = min(len(held), line + new.count("\n") + _SHOWN_LINES)
        return f"{path} was edited. It now reads:\n{_numbered(held, first, last)}"


def _decoded(path: str, data: bytes) -> str:
    if len(data) > MOST_BYTES:
        raise _Wrong(f"{path} has more than {MOST_BYTES >> 20} MB; use the shell.")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise _Wrong(f"{path} is no text in UTF-8.") from None


def _text(wanted: dict[str, Any], name: str) -> str:
    value = wanted.get(name)
    if not isinstance(value, str):
        raise _Wrong(f"`{name}` must be given, as text.")
    return value


def _lines(text: str) -> list[str]:
    """Return the lines, without line ends."""
    *complete, rest = text.split("\n")
    return complete + ([rest] if rest else [])


def _range(lines: Any, count: int) -> tuple[int, int]:
    if lines is None:
        return 1, count
    numbers = isinstance(lines, list) and [type(number) for number in lines] == [int, int]
    first, last = lines if numbers else (0, 0)
    last = count if last == -1 else min(last, count)
    if not 1 <= first <= max(1, last):
        raise _Wrong(f"`view_range` must be two lines from 1 to {count}, or -1 for the last.")
    return first, last


def _numbered(lines: list[str], first: int, last: int) -> str:
    shown: list[str] = []
    room = MOST_CHARACTERS
    for number in range(first, last + 1):
        line = f"{number:6d}\t{lines[number - 1]}"
        room -= len(line) + 1
        if room < 0:
            cut = f"[lines {number} to {last} are left out; view_range shows them]"
            return "\n".join([*shown, line[: max(0, room + len(line) + 1)], cut])
        shown.append(line)
    return "\n".join(shown) or "[the file is empty]"
