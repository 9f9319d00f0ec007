"""The builder: takes builds from the queue and makes them environments, each in processes of its own."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import shutil
import signal
import site
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

import hud
from hud.client.presence import presence
from hud.errors import HudError, UsageError
from hud.platform.builds import MOST_ATTEMPTS, Build, Builds
from hud.platform.environments import VARIABLES, interpreter
from hud.platform.unpacking import unpack

if TYPE_CHECKING:
    from hud.platform.platform import Platform

POLL_SECONDS = 0.5
RENEW_SECONDS = 15.0
BUILD_SECONDS = 1800.0
_OURS = re.compile(r"^\s*(hud|hud-python|openhud)\b(?![-\w])", re.IGNORECASE)
"""Requirements that the server's own package satisfies."""
_DONE = ".done"


class Builder:
    """Builds for one server, one at a time."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform
        self.builds = Builds(platform.store, platform.home)
        self.worker = presence("builder")

    async def work(self) -> None:
        """Build whatever is queued, until the platform stops."""
        await asyncio.to_thread(self.builds.recover)
        stopping = self.platform.stopping
        while not stopping.is_set():
            build = await asyncio.to_thread(self.builds.take, self.worker)
            if build is None:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stopping.wait(), POLL_SECONDS)
                continue
            task = asyncio.create_task(self._hold(build))
            stopped = asyncio.create_task(stopping.wait())
            await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
                await asyncio.to_thread(self.builds.release, build, self.worker)
            stopped.cancel()

    async def _hold(self, build: Build) -> None:
        """Build one, renewing its lease meanwhile."""
        work = asyncio.create_task(self._build(build))
        try:
            while not work.done():
                await asyncio.wait({work}, timeout=RENEW_SECONDS)
                if not work.done() and not await asyncio.to_thread(
                    self.builds.renew, build, self.worker
                ):
                    return  # Somebody took it over.
        finally:
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work

    async def _build(self, build: Build) -> None:
        await asyncio.to_thread(self.builds.clear_log, build)
        private = await asyncio.to_thread(self.builds.private, build)
        log = _Log(self.builds, build, private)
        try:
            if build.attempt > MOST_ATTEMPTS:
                raise UsageError(
                    "It ended the server's builder three times and is not tried again."
                )
            async with asyncio.timeout(BUILD_SECONDS):
                version = await self._make(build, private, log)
            await log.say(f"Built version {version}.")
        except TimeoutError:
            await self._fail(
                build, log, f"The build took longer than {BUILD_SECONDS / 60:.0f} min."
            )
        except HudError as error:
            await self._fail(build, log, str(error))
        except Exception as error:
            await self._fail(build, log, f"{type(error).__name__}: {error}")
            raise

    async def _fail(self, build: Build, log: _Log, reason: str) -> None:
        reason = log.hide(reason)
        if reason != log.last:
            await log.say(reason)
        await asyncio.to_thread(self.builds.fail, build, self.worker, reason)

    async def _make(self, build: Build, private: dict[str, dict[str, str]], log: _Log) -> int:
        platform, options = self.platform, build.options
        with contextlib.ExitStack() as stack:
            local = platform.store.blobs.local(build.archive)
            archive = await asyncio.to_thread(stack.enter_context, local)
            name = await asyncio.to_thread(_digest, archive, build, private)
            if options.get("no_cache"):
                name = f"{name[:24]}-{build.id[:8]}-{build.attempt}"
            folder = platform.home / "environments" / name
            log.source = f"{folder / 'source'}/"
            if (folder / _DONE).exists():
                await log.say(
                    "The source has not changed since an earlier build; that is used again."
                )
            else:
                # What a builder that died left of it.
                await asyncio.to_thread(shutil.rmtree, folder, True)
                await self._install(folder, archive, private, log)
        manifest = await _describe(folder, options, private, log)
        await asyncio.to_thread(_keep_variables, folder, private.get("environment_variables", {}))
        await log.say(f"It has {len(manifest['tasks'])} tasks.")
        return await asyncio.to_thread(self.builds.succeed, build, self.worker, folder, manifest)

    async def _install(
        self, folder: Path, archive: Path, private: dict[str, dict[str, str]], log: _Log
    ) -> None:
        """Unpack the source and install what it asks for."""
        count = await asyncio.to_thread(unpack, archive, folder / "source")
        await log.say(f"Unpacked {count} files.")
        wanted = requirements(folder / "source")
        if not wanted:
            await log.say("It needs nothing beyond what the server has.")
            return
        await log.say(f"Installing {', '.join(wanted)}.")
        environment = {
            **_clean_environment(),
            **private.get("build_args", {}),
            **private.get("build_secrets", {}),
        }
        venv = folder / "venv"
        if uv := shutil.which("uv"):
            await _run([uv, "venv", "--python", sys.executable, str(venv)], environment, log)
            _share_ours(venv)
            install = [uv, "pip", "install", "--python", str(venv / "bin" / "python")]
        else:
            await _run([sys.executable, "-m", "venv", str(venv)], environment, log)
            _share_ours(venv)
            install = [str(venv / "bin" / "python"), "-m", "pip", "install", "--no-input"]
        await _run([*install, *wanted], environment, log, folder / "source")


class _Log:
    """What a build says, with everything private in it hidden."""

    def __init__(self, builds: Builds, build: Build, private: dict[str, dict[str, str]]) -> None:
        self._builds, self._build = builds, build
        self._next = 1
        self.last = ""
        self.source = ""
        """Where the source lies: the server's own affair."""
        self._secrets = sorted(
            {value for kind in private.values() for value in kind.values() if len(value) >= 4},
            key=len,
            reverse=True,
        )

    async def say(self, *lines: str) -> None:
        """Write lines."""
        first, self._next = self._next, self._next + len(lines)
        shown = [self.hide(line)[:4000] for line in lines]
        self.last = shown[-1] if shown else self.last
        await asyncio.to_thread(self._builds.say, self._build, first, shown)

    def hide(self, text: str) -> str:
        """Return text without private values and places."""
        for secret in self._secrets:
            text = text.replace(secret, "•••")
        return text.replace(self.source, "") if self.source else text


def requirements(source: Path) -> list[str]:
    """Return what a source asks to be installed, from requirements.txt and pyproject.toml, ours left out."""
    found: list[str] = []
    listed, project = source / "requirements.txt", source / "pyproject.toml"
    if listed.exists():
        for line in listed.read_text(encoding="utf-8").splitlines():
            text = line.split(" #")[0].strip()
            if text and not text.startswith("#"):
                found.append(text)
    elif project.exists():
        try:
            parsed = tomllib.loads(project.read_text(encoding="utf-8"))
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"pyproject.toml: {error}.") from error
        found = [str(one) for one in parsed.get("project", {}).get("dependencies", [])]
    refused = [one for one in found if one.startswith("-")]
    if refused:
        raise UsageError(f"requirements.txt: options such as {refused[0]!r} are not supported.")
    return [one for one in found if not _OURS.match(one)]


async def _describe(
    folder: Path, options: dict[str, Any], private: dict[str, dict[str, str]], log: _Log
) -> dict[str, Any]:
    """Load the environment where it will run, and return its manifest."""
    await log.say("Loading the environment.")
    variables = {**_clean_environment(), **private.get("environment_variables", {})}
    command = [str(interpreter(folder)), "-m", "hud.environment.manifest", str(folder / "source")]
    if options.get("environment"):
        command += ["--name", str(options["environment"])]
    said = await _run(command, variables, log, folder / "source", quiet=True)
    try:
        manifest: dict[str, Any] = orjson.loads(said[-1])
    except (IndexError, orjson.JSONDecodeError):
        raise UsageError("The environment ended its process while it was loaded.") from None
    return manifest


async def _run(
    command: list[str],
    environment: dict[str, str],
    log: _Log,
    folder: Path | None = None,
    *,
    quiet: bool = False,
) -> list[str]:
    """Run a command, its output to the log; with `quiet`, only where it fails. Returns the lines."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
        limit=1 << 20,
    )
    assert process.stdout is not None
    lines: list[str] = []
    try:
        async for raw in process.stdout:
            line = raw.decode("utf-8", "replace").rstrip()
            lines.append(line)
            if not quiet and line:
                await log.say(line)
        status = await process.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    if status != 0:
        said = [line for line in lines if line]
        if quiet:
            await log.say(*said)
        raise UsageError(
            said[-1] if said else f"{Path(command[0]).name} ended with status {status}."
        )
    return lines


def _clean_environment() -> dict[str, str]:
    """Return the variables that builds start from: none of the server's own, which hold its secrets."""
    kept = (
        "PATH",
        "HOME",
        "LANG",
        "TMPDIR",
        "PIP_INDEX_URL",
        "PIP_FIND_LINKS",
        "PIP_CERT",
        "UV_INDEX_URL",
    )
    given = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY")
    return {name: os.environ[name] for name in (*kept, *given) if name in os.environ}


def _share_ours(venv: Path) -> None:
    """Let a virtual environment see the server's own packages, behind what it installs itself."""
    ours = [str(Path(hud.__file__).parent.parent), *site.getsitepackages()]
    packages = next((venv / "lib").glob("python*")) / "site-packages"
    (packages / "openhud-server.pth").write_text("\n".join(ours) + "\n")


def _digest(archive: Path, build: Build, private: dict[str, dict[str, str]]) -> str:
    """Return what a build is made of, as a name: equal ones can share a folder."""
    hasher = hashlib.sha256(f"{sys.version}:{build.team_id}".encode())
    arguments = {name: private.get(name, {}) for name in ("build_args", "environment_variables")}
    hasher.update(orjson.dumps(arguments, option=orjson.OPT_SORT_KEYS))
    with archive.open("rb") as file:
        while chunk := file.read(1 << 20):
            hasher.update(chunk)
    return hasher.hexdigest()[:40]


def _keep_variables(folder: Path, variables: dict[str, str]) -> None:
    path = folder / VARIABLES
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(orjson.dumps(variables))
    (folder / _DONE).touch()
