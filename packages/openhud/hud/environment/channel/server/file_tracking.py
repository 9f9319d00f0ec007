"""`filetracking/1`: file changes of a run, for third-party clients; OpenHUD's client receives them with each step.

The protocol runs on the tunnel itself, without a port that other processes of this machine could connect to.
"""

from __future__ import annotations

import asyncio
import base64
import time
from asyncio import StreamReader, StreamWriter
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from hud.capabilities import Capability
from hud.capabilities.capability import FILE_TRACKING
from hud.environment.channel.framing import (
    METHOD_NOT_FOUND,
    ChannelError,
    FrameError,
    error_frame,
    read_frame,
    result_frame,
)
from hud.environment.run import EnvironmentRun

if TYPE_CHECKING:
    from hud.environment.workspace.files.follower import Following

NAME = "filetracking"
_NO_PORT = "tcp://127.0.0.1:0"
_MOST_CAPTURED = 20
_FILE_BYTES = 5 << 20
_ALL_BYTES = 15 << 20
_OFFICE = "application/vnd.openxmlformats-officedocument"
_KINDS = {
    ".docx": f"{_OFFICE}.wordprocessingml.document",
    ".htm": "text/html",
    ".html": "text/html",
    ".jpeg": "image/jpeg",
    ".jpg": "image/jpeg",
    ".pdf": "application/pdf",
    ".png": "image/png",
    ".pptx": f"{_OFFICE}.presentationml.presentation",
    ".webp": "image/webp",
    ".xlsm": "application/vnd.ms-excel.sheet.macroEnabled.12",
    ".xlsx": f"{_OFFICE}.spreadsheetml.sheet",
}
"""Files returned whole at the end: documents and images, which a patch does not show."""


class FileTracking:
    """The files of a session's run."""

    def __init__(self, followers: dict[str, Following]) -> None:
        self._followers = followers
        self._begun: dict[str, str | None] = {}
        """Content hashes of the files at the agent's start."""
        self._asked = asyncio.Lock()
        self.capability = Capability(NAME, FILE_TRACKING, _NO_PORT, {"setup_diff": True})
        self._methods = {
            "setup": self._setup,
            "advance": self._advance,
            "snapshot": self._snapshot,
            "diff": self._diff,
            "flush": self._flush,
        }

    @classmethod
    async def of(cls, run: EnvironmentRun) -> FileTracking | None:
        """Start tracking a run's files and return the tracker; None if no part has files."""
        followers = await run.parts.follow_files()
        return cls(followers) if followers else None

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Serve one client until it disconnects."""
        while True:
            try:
                frame = await read_frame(reader)
            except FrameError:
                return
            if frame is None:
                return
            writer.write(await self._answer(frame))
            await writer.drain()

    async def _answer(self, frame: dict[str, Any]) -> bytes:
        method = str(frame.get("method"))
        handler = self._methods.get(method)
        if handler is None:
            problem = ChannelError(METHOD_NOT_FOUND, f"method not found: {method}")
            return error_frame(frame.get("id"), problem)
        try:
            async with self._asked:
                return result_frame(frame.get("id"), await handler())
        except Exception as error:  # The error is returned, and the client may retry.
            return error_frame(frame.get("id"), ChannelError.of(error))

    async def _setup(self) -> dict[str, Any]:
        """Return the changes of the task's setup; the present files become the agent's initial state."""
        changed = await self._diff()
        self._begun = {file["path"]: file["content_hash"] for file in self._files()}
        return changed

    async def _advance(self) -> dict[str, Any]:
        await self._setup()
        return {"advanced": True}

    async def _snapshot(self) -> dict[str, Any]:
        files = self._files()
        return {"files": files, "files_scanned": len(files)}

    async def _flush(self) -> dict[str, Any]:
        return {"diff": await self._diff(), "capture": await self._capture()}

    async def _diff(self) -> dict[str, Any]:
        """Return the changes since the last call, in all tracked files."""
        changes: dict[str, Any] = {
            "snapshot_timestamp": time.time(),
            "scan_duration_ms": 0.0,
            "files_changed": 0,
            "patches": [],
        }
        for name, follower in self._followers.items():
            changed = await follower.changed()
            for patch in changed.get("patches", []):
                changes["patches"].append({**patch, "path": self._path(name, patch["path"])})
            for count in ("scan_duration_ms", "files_changed"):
                changes[count] += changed.get(count, 0)
            if changed.get("truncated"):
                changes["truncated"] = True
        changes["files_scanned"] = len(self._files())
        return changes

    def _files(self) -> list[dict[str, Any]]:
        return [
            {**file, "path": self._path(name, file["path"])}
            for name, follower in self._followers.items()
            for file in follower.files()
        ]

    def _path(self, name: str, path: str) -> str:
        return path if len(self._followers) == 1 else f"{name}/{path}"

    async def _capture(self) -> dict[str, Any]:
        """Return the documents and images that the agent created or changed."""
        captured: dict[str, Any] = {
            "snapshot_timestamp": time.time(),
            "scan_duration_ms": 0.0,
            "files_scanned": 0,
            "files_changed": 0,
            "files_eligible": 0,
            "files_captured": 0,
            "files_skipped": 0,
            "files": [],
        }
        room = _ALL_BYTES
        for name, follower in self._followers.items():
            for file in follower.files():
                path = self._path(name, file["path"])
                captured["files_scanned"] += 1
                if path in self._begun and self._begun[path] == file["content_hash"]:
                    continue
                captured["files_changed"] += 1
                kind = _KINDS.get(PurePosixPath(path).suffix.lower())
                if kind is None:
                    continue
                captured["files_eligible"] += 1
                most = min(_FILE_BYTES, room)
                fits = file["size"] <= most and len(captured["files"]) < _MOST_CAPTURED
                content = await follower.read(file["path"], most) if fits else None
                if content is None:
                    captured["files_skipped"] += 1
                    if not fits:
                        captured["truncated"] = True
                    continue
                room -= len(content)
                captured["files_captured"] += 1
                captured["files"].append(
                    {
                        **file,
                        "path": path,
                        "content_type": kind,
                        "status": "modified" if path in self._begun else "added",
                        "file": {
                            "type": "file",
                            "data": base64.b64encode(content).decode(),
                            "media_type": kind,
                        },
                    }
                )
        return captured
