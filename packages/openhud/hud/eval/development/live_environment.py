"""`LiveEnvironment`: an environment that is reloaded when its source changes. Every version has its own process.

If a version cannot be loaded, the problem is reported and the last working version continues. Works on processes and
files; independent of the users of its runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hud.environment.channel import RemoteConnection
from hud.errors import HudError, NotFoundError
from hud.eval.runtimes.served import ServedProcess

if TYPE_CHECKING:
    from watchfiles import Change

READY_SECONDS = 120.0
_STEP_MS = 50
_DEBOUNCE_MS = 400
"""Debounce of file changes: changes within a step are merged, for at most this time, in milliseconds."""
_OWN_FILES = (".py", ".env")
"""Patterns of watched files in the environment's folder; other files may be the environment's output."""


@dataclass(frozen=True)
class Version:
    """A version of the source, and the process that serves it."""

    serial: int
    process: ServedProcess
    name: str
    version: str


class LiveEnvironment:
    """The environment at `source`, in its last working version.

    `tell` receives messages for the developer, `on_output` the output of its process. It watches the environment's folder, and
    the files and folders in `watch`.
    """

    def __init__(
        self,
        source: str,
        *,
        watch: Sequence[Path] = (),
        tell: Callable[[str], None],
        on_output: Callable[[bytes], None] = lambda printed: None,
        ready_timeout: float = READY_SECONDS,
    ) -> None:
        self.source = source
        self.folder = own_folder(source)
        self.watched = [self.folder, *(path.resolve() for path in watch)]
        self.problem: str | None = None
        """Reason why the last saved version does not run, or None."""
        self._tell = tell
        self._on_output = on_output
        self._ready_timeout = ready_timeout
        self._serial = 0
        self._version: Version | None = None
        self._loading: asyncio.Task[None] | None = None
        self._restarting = asyncio.Lock()
        self._replaced: Callable[[], Awaitable[None]] | None = None
        self._retiring: set[asyncio.Task[None]] = set()

    @property
    def version(self) -> Version:
        assert self._version is not None, "it is not running"
        return self._version

    @asynccontextmanager
    async def running(self) -> AsyncIterator[LiveEnvironment]:
        """Start the first version, and watch its source. Raises the errors of loading it."""
        following = asyncio.create_task(self._follow())
        try:
            await asyncio.sleep(0)  # Watch before the source is read: no change is missed.
            self._version = await self._bring_up()
            yield self
        finally:
            following.cancel()
            await asyncio.wait({following})
            if self._retiring:
                await asyncio.wait(self._retiring)
            if self._version is not None:
                await self._version.process.end()

    def when_replaced(self, then: Callable[[], Awaitable[None]]) -> None:
        """Await `then` after each replacement, and before the old version's process is ended."""
        self._replaced = then

    async def open(self) -> RemoteConnection:
        """Return a new run of the current version; an exited process is restarted."""
        async with self._restarting:
            if self.version.process.child.status is not None:
                lost = await self.version.process.why_lost()
                self._tell(f"{self.source}: {lost.reason}. It is started again.")
                await self.version.process.end()  # Also its remaining child processes.
                self._version = await self._bring_up()
        return await self.version.process.connect(self._ready_timeout)

    async def _follow(self) -> None:
        from watchfiles import awatch

        try:
            async for changes in awatch(
                *dict.fromkeys(self.watched),
                watch_filter=_filter(self.watched[1:]),
                step=_STEP_MS,
                debounce=_DEBOUNCE_MS,
            ):
                await self._stop_loading()  # It is loading an outdated version.
                changed = sorted({path for _, path in changes})
                self._loading = asyncio.create_task(self._reload(changed))
        finally:
            await self._stop_loading()

    async def _stop_loading(self) -> None:
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.wait({self._loading})

    async def _reload(self, changed: Iterable[str]) -> None:
        names = ", ".join(Path(path).name for path in changed)
        try:
            fresh = await self._bring_up()
        except HudError as error:
            self.problem = str(error)
            self._tell(f"{names} was saved, but not loaded: {error} The last good version goes on.")
            return
        old, self._version, self.problem = self._version, fresh, None
        self._tell(f"{names} was saved: {fresh.name} {fresh.version} is loaded afresh.")
        if old is not None:
            retiring = asyncio.create_task(self._retire(old))
            self._retiring.add(retiring)
            retiring.add_done_callback(self._retiring.discard)

    async def _retire(self, old: Version) -> None:
        try:
            if self._replaced is not None:
                await self._replaced()
        finally:
            await old.process.end()

    async def _bring_up(self) -> Version:
        printed = _Printed(self._on_output)
        process = await ServedProcess.start(self.source, on_output=printed)
        try:
            first = await process.connect(self._ready_timeout)
            name, version = first.name, first.version
            await first.close()
        except BaseException:
            await asyncio.shield(process.end())
            raise
        printed.release()
        self._serial += 1
        return Version(self._serial, process, name, version)


class _Printed:
    """Output of a process until it is ready; its last lines are part of the error if it fails to start."""

    def __init__(self, on_output: Callable[[bytes], None]) -> None:
        self._on_output = on_output
        self._kept: list[bytes] | None = []

    def __call__(self, printed: bytes) -> None:
        if self._kept is None:
            self._on_output(printed)
        else:
            self._kept.append(printed)

    def release(self) -> None:
        pending, self._kept = self._kept, None
        for printed in pending or []:
            self._on_output(printed)


def own_folder(source: str) -> Path:
    """Return the folder of an environment's files. Raises `NotFoundError` for a missing `.py` file."""
    path = Path(source.partition(":")[0])
    if path.is_dir():
        return path.resolve()
    if path.suffix == ".py":
        if not path.exists():
            raise NotFoundError(f"There is no file {path}.")
        return path.resolve().parent
    return Path.cwd()  # A module, searched from the working directory.


def _filter(watched: Sequence[Path]) -> Callable[[Change, str], bool]:
    from watchfiles import DefaultFilter

    sensible = DefaultFilter()

    def counts(change: Change, path: str) -> bool:
        if not sensible(change, path):
            return False
        is_watched = any(Path(path).is_relative_to(folder) for folder in watched)
        return is_watched or path.endswith(_OWN_FILES)

    return counts
