"""Builder: takes builds from the queue and makes environments of them, each in processes of its own."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import shutil
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hud import exact_json
from hud.durable_files import PRIVATE, flush_folder, flush_tree, make_folder, open_lock, write_file
from hud.environment.sources.declarations import declared_names, entry_of
from hud.errors import HudError, UsageError
from hud.fleet.builds.archives import unpack
from hud.processes.presence import presence
from hud_platform.environments import container_images as containers
from hud_platform.environments.build_commands import run
from hud_platform.environments.build_log import BuildLog
from hud_platform.environments.build_queue import Build, Builds
from hud_platform.environments.registry import VARIABLES, interpreter, normalized, variables_of
from hud_platform.environments.virtual_environment import clean_variables, install, requirements

if TYPE_CHECKING:
    from hud_platform.process.config import PlatformConfig
    from hud_platform.store import Store

POLL_SECONDS = 0.5
RENEW_SECONDS = 15.0
_DONE = ".done"
_Private = dict[str, dict[str, str]]


class Builder:
    """Builds for one server, one at a time."""

    def __init__(self, config: PlatformConfig, store: Store, stopping: asyncio.Event) -> None:
        self.limits = config.builds
        self.home = config.home / "environments"
        self.stopping = stopping
        self.blobs = store.blobs
        self.builds = Builds(store, config.home)
        self.worker = presence("builder")

    async def work(self) -> None:
        """Build whatever is queued, until the platform stops."""
        await asyncio.to_thread(self.builds.begin_again)
        stopping = self.stopping
        while not stopping.is_set():
            taken = await asyncio.to_thread(self.builds.take, self.worker)
            if not taken:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stopping.wait(), POLL_SECONDS)
                continue
            (build,) = taken
            task = asyncio.create_task(self._hold(build))
            stopped = asyncio.create_task(stopping.wait())
            await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
                await asyncio.to_thread(self.builds.release, self.worker, [build.id])
            stopped.cancel()

    async def _hold(self, build: Build) -> None:
        """Build one and renew its lease meanwhile; a build whose lease is lost is given up."""
        work = asyncio.create_task(self._build(build))
        try:
            while not work.done():
                await asyncio.wait({work}, timeout=RENEW_SECONDS)
                if work.done():
                    break
                _, lost = await asyncio.to_thread(self.builds.renew, self.worker, [build.id])
                if lost:
                    return
        finally:
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work

    async def _build(self, build: Build) -> None:
        await asyncio.to_thread(self.builds.clear_log, build)
        private = await asyncio.to_thread(self.builds.private, build)
        log = BuildLog(self.builds, build, private)
        try:
            async with asyncio.timeout(self.limits.seconds):
                await self._make(build, private, log)
        except TimeoutError:
            minutes = self.limits.seconds / 60
            await self._fail(build, log, f"The build took longer than {minutes:g} min.")
        except (HudError, OSError) as error:
            await self._fail(build, log, str(error))
        except Exception as error:
            await self._fail(build, log, f"{type(error).__name__}: {error}")
            raise

    async def _fail(self, build: Build, log: BuildLog, reason: str) -> None:
        reason = log.hide(reason)
        await log.conclude(reason)
        await asyncio.to_thread(self.builds.fail, build, reason)

    async def _make(self, build: Build, private: _Private, log: BuildLog) -> None:
        making = _Making(build, private, log, self.home)
        await asyncio.to_thread(making.keep_earlier_variables, self.builds.newest(build))
        try:
            with contextlib.ExitStack() as stack:
                local = self.blobs.local(build.archive)
                archive = await asyncio.to_thread(stack.enter_context, local)
                limits = self.limits
                count = await asyncio.to_thread(
                    unpack,
                    archive,
                    making.scratch / "source",
                    most_files=limits.files,
                    most_bytes=limits.bytes,
                )
            await log.say(f"Unpacked {count} files.")
            folder, manifest = await making.make()
        finally:
            await asyncio.to_thread(shutil.rmtree, making.scratch, True)
        # Said before the end is: whoever follows the log stops there.
        templates = len(manifest["tasks"])
        await log.conclude(f"It has {templates} {'template' if templates == 1 else 'templates'}.")
        await asyncio.to_thread(self.builds.succeed, build, folder, manifest)


@dataclass
class _Making:
    """One build on its way from a source to a folder that can be run."""

    build: Build
    private: _Private
    log: BuildLog
    home: Path

    def __post_init__(self) -> None:
        self.scratch = self.home / f".{self.build.id}-{self.build.lease.attempt}"
        make_folder(self.home)
        shutil.rmtree(self.scratch, ignore_errors=True)

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables with which the environment runs."""
        return self.private.get("environment_variables", {})

    def keep_earlier_variables(self, earlier: Path | None) -> None:
        """Take over what the version before runs with, unless it is given anew."""
        if earlier is not None:
            earlier_variables = variables_of(earlier)
            self.private["environment_variables"] = {**earlier_variables, **self.variables}
            self.log.add_secrets(earlier_variables.values())

    async def make(self) -> tuple[Path, dict[str, Any]]:
        """Return the folder and the manifest of what was unpacked into `scratch`."""
        source = self.scratch / "source"
        if await containers.wanted(source, self.log):
            return await self._make_image(source)
        name = await asyncio.to_thread(self._digest, source)
        if self.build.options.get("no_cache"):
            name = f"{name[:24]}-{self.build.id[:8]}-{self.build.lease.attempt}"
        folder = self.home / name
        self.log.source = f"{folder / 'source'}/"
        async with _alone(self.home / f".{name}.lock"):
            if (folder / _DONE).exists():
                await self.log.say("Nothing has changed since an earlier build; that is used.")
            else:
                # What a builder that died left of it.
                await asyncio.to_thread(shutil.rmtree, folder, True)
                await asyncio.to_thread(self.scratch.rename, folder)
                await self._install(folder)
            manifest = await self._describe(folder)
            await asyncio.to_thread(_keep_variables, folder, self.variables)
        return folder, manifest

    async def _make_image(self, source: Path) -> tuple[Path, dict[str, Any]]:
        options = self.build.options
        image = f"hud/{normalized(options['name'])}:{self.build.id[:12]}"
        await self.log.say(f"Building the image {image}.")
        await containers.build(
            source,
            image,
            self.log,
            arguments=self.private.get("build_args", {}),
            secrets=self.private.get("build_secrets", {}),
            no_cache=bool(options.get("no_cache")),
        )
        manifest = await containers.describe(image, self.variables, self.log)
        folder = self.home / f"image-{self.build.id}"
        await asyncio.to_thread(shutil.rmtree, folder, True)
        await asyncio.to_thread(self.scratch.rename, folder)
        await asyncio.to_thread(_keep_variables, folder, self.variables)
        return folder, manifest

    async def _install(self, folder: Path) -> None:
        """Install what the source asks for."""
        wanted = await asyncio.to_thread(requirements, folder / "source")
        if not any(not line.startswith("-") or line.startswith(("-e", "--e")) for line in wanted):
            await self.log.say("It needs nothing beyond what the server has.")
            return
        shown = [line.split(" --hash")[0] for line in wanted]
        await self.log.say(f"Installing {', '.join(shown)}.")
        build_variables = {
            **self.private.get("build_args", {}),
            **self.private.get("build_secrets", {}),
        }
        await install(folder, wanted, build_variables, self.log)

    async def _describe(self, folder: Path) -> dict[str, Any]:
        """Load the environment where it will run, and return its manifest."""
        await self.log.say("Loading the environment.")
        source = folder / "source"
        entry = await asyncio.to_thread(self._entry, source)
        out = folder / "manifest.json"
        out.unlink(missing_ok=True)
        module = "hud.environment.sources.manifest"
        command = [str(interpreter(folder)), "-P", "-m", module, str(entry), str(out)]
        # With a name only where there is a choice: the registry's may be spelled otherwise.
        names = declared_names(entry)
        called = str(self.build.options.get("name") or "")
        if len(names) > 1:
            alike = [name for name in names if _alike(name, called)]
            command += ["--name", called if called in names or not alike else alike[0]]
        variables = {**clean_variables(), **self.variables}
        await run(command, variables, self.log, source, quiet=True)
        try:
            manifest: dict[str, Any] = exact_json.loads(out.read_bytes())
        except (FileNotFoundError, exact_json.JSONDecodeError):
            raise UsageError("The environment ended its process while it was loaded.") from None
        return {**manifest, "entry": entry.relative_to(source).as_posix()}

    def _entry(self, source: Path) -> Path:
        """Return the file that makes the environment."""
        entry = self.build.options.get("entry")
        if not entry:
            return entry_of(source, self.build.options.get("name"))
        path = Path(os.path.normpath(source / str(entry)))
        if not path.is_relative_to(source) or not path.is_file():
            raise UsageError(f"There is no file {entry!r} in the source.")
        return path

    def _digest(self, source: Path) -> str:
        """Return what a build is made of, as a name: equal ones can share a folder."""
        hasher = hashlib.sha256(f"{sys.version}:{self.build.team_id}".encode())
        kinds = ("build_args", "environment_variables")
        private = {kind: self.private.get(kind, {}) for kind in kinds}
        hasher.update(exact_json.dumps(private, option=exact_json.OPT_SORT_KEYS))
        for path in sorted(source.rglob("*")):
            name = path.relative_to(source).as_posix()
            if path.is_symlink():
                hasher.update(f"\0link {name}\0{path.readlink()}".encode())
            elif path.is_file():
                status = path.stat()
                hasher.update(f"\0file {name}\0{status.st_mode}:{status.st_size}\0".encode())
                with path.open("rb") as file:
                    while piece := file.read(1 << 20):
                        hasher.update(piece)
        return hasher.hexdigest()[:40]


def _alike(name: str, other: str) -> bool:
    try:
        return normalized(name) == normalized(other)
    except UsageError:
        return False


@contextlib.asynccontextmanager
async def _alone(path: Path) -> AsyncIterator[None]:
    """Be the only builder that works on a folder, of however many servers share the disk."""
    make_folder(path.parent)
    with open_lock(path) as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(POLL_SECONDS)
        yield


def _keep_variables(folder: Path, variables: dict[str, str]) -> None:
    """Store the variables of a finished build, then mark it as complete: the mark is written last."""
    write_file(folder / VARIABLES, exact_json.dumps(variables), PRIVATE)
    if not (folder / _DONE).exists():
        flush_tree(folder)
        flush_folder(folder.parent)
        write_file(folder / _DONE, b"")
