"""Cache of builds that a worker fetched: one folder for each, named by the digest of its archive.

A folder that is there is whole: an archive is fetched, verified, unpacked and installed beside it, and moved into place in
one step. Several workers may share a cache. Container images are kept by the container engine.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import shutil
import sys
import tempfile
import time
import venv
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hud import exact_json
from hud.client import Client
from hud.durable_files import open_lock, rename_folder
from hud.errors import EnvironmentFault, InfrastructureFault, UsageError
from hud.eval.runtimes.containers.images import has_image, load_image
from hud.fleet.builds.archives import unpack
from hud.fleet.builds.shared_packages import share_ours
from hud.fleet.capacity import platform_tag

DESCRIPTION, SOURCE, PACKAGES = "build.json", "source", "packages"
"""Members of a packed build."""
PLACE = "{{the build's folder}}"
"""Stands in a packed build for the folder that it is unpacked into."""
MOST_FILES = 500_000
MOST_BYTES = 64 << 30
_CHUNK = 1 << 20

Say = Callable[[str], None]


@dataclass(frozen=True)
class InstalledBuild:
    """A build on this machine: the file that makes its environment, and the interpreter that runs it."""

    source: Path
    python: Path


class BuildCache:
    """The builds below one folder, fetched through `client`."""

    def __init__(self, folder: Path, client: Client, say: Say) -> None:
        self.folder = folder
        self.client = client
        self.say = say
        self._known: dict[str, InstalledBuild] = {}
        self._loaded: set[str] = set()
        """Images that this machine's container engine has."""
        self._fetching: dict[str, asyncio.Lock] = {}

    async def get(self, name: str, build_id: str) -> InstalledBuild:
        """Return a build, fetched and installed if it is not here yet; `name` is its environment's.

        Raises `InfrastructureFault` where it cannot be fetched, `EnvironmentFault` where it cannot run here.
        """
        async with self._fetching.setdefault(build_id, asyncio.Lock()):
            if build_id not in self._known:
                self.say(f"{name}: waiting for its build")  # The first to ask has it packed.
                about = await self.client.get(f"/v2/fleet/builds/{build_id}")
                self._known[build_id] = await self._install(name, about)
            return self._known[build_id]

    async def load_image(self, name: str, build_id: str, image: str) -> None:
        """Load the container image of a build into this machine's container engine, fetched if it is not there.

        Raises `InfrastructureFault` where it cannot be fetched, `EnvironmentFault` where the archive does not hold it.
        """
        async with self._fetching.setdefault(build_id, asyncio.Lock()):
            if image in self._loaded:
                return
            if not await has_image(image):
                self.say(f"{name}: waiting for its image")
                about = await self.client.get(f"/v2/fleet/builds/{build_id}")
                await self._load(name, about, image)
            self._loaded.add(image)

    async def _load(self, name: str, about: dict[str, Any], image: str) -> None:
        async with self._fetched(name, about) as archive:
            self.say(f"{name}: loading the image")
            await load_image(archive)
            if not await has_image(image):
                raise EnvironmentFault(f"The archive of {name!r} does not hold the image {image}.")

    async def _install(self, name: str, about: dict[str, Any]) -> InstalledBuild:
        digest = str(about["digest"])
        place = self.folder / digest
        if place.exists():
            self.say(f"{name}: in the cache")
        else:
            async with self._fetched(name, about) as archive:
                self.say(f"{name}: installing")
                build = archive.with_name("build")
                await asyncio.to_thread(self._unpack, name, archive, build, place)
        about = exact_json.loads((place / DESCRIPTION).read_bytes())
        own = place / "venv" / "bin" / "python"
        python = own if own.exists() else Path(sys.executable)
        return InstalledBuild(place / SOURCE / about["entry"], python)

    @asynccontextmanager
    async def _fetched(self, name: str, about: dict[str, Any]) -> AsyncIterator[Path]:
        """Yield the archive of a build, in a folder of its own that ends with the block."""
        began = time.monotonic()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self.folder, prefix=".fetching-") as scratch:
                archive = Path(scratch) / "archive.tar.gz"
                await self._download(name, str(about["digest"]), int(about["size"]), archive)
                yield archive
        except OSError as error:
            raise InfrastructureFault(f"{self.folder}: {error.strerror or error}.") from error
        self.say(f"{name}: ready after {time.monotonic() - began:.1f} s")

    async def _download(self, name: str, digest: str, size: int, archive: Path) -> None:
        reported, received, hasher = 0, 0, hashlib.sha256()
        self.say(f"{name}: fetching {size / 2**20:.1f} MiB, sha256 {digest[:12]}")
        with archive.open("wb") as file:
            async for piece in self.client.download(f"/v2/fleet/packages/{digest}"):
                received += len(piece)
                if received > size:
                    break
                hasher.update(piece)
                file.write(piece)
                share = received * 10 // max(size, 1)
                if share > reported:
                    reported = share
                    self.say(f"{name}: {10 * share}%")
        if received != size or hasher.hexdigest() != digest:
            raise InfrastructureFault(
                f"The build of {name!r} arrived damaged: {received:,} of {size:,} bytes, not of the digest {digest[:12]}."
            )

    def _unpack(self, name: str, archive: Path, scratch: Path, place: Path) -> None:
        try:
            unpack(archive, scratch, most_files=MOST_FILES, most_bytes=MOST_BYTES)
            about = exact_json.loads((scratch / DESCRIPTION).read_bytes())
        except (UsageError, FileNotFoundError, exact_json.JSONDecodeError) as error:
            raise EnvironmentFault(f"The build of {name!r} cannot be unpacked: {error}") from error
        if about["platform"] not in (None, platform_tag()):
            raise EnvironmentFault(
                f"The build of {name!r} holds packages for {about['platform']}, and this worker is {platform_tag()}."
            )
        with _locked(self.folder / f".{place.name}.lock"):
            if place.exists():
                return
            if about["platform"] is not None:
                _make_venv(scratch, place)
            # The last step: a folder of this name is whole.
            rename_folder(scratch, place)


def site_packages(venv: Path) -> Path:
    """Return the folder of a virtual environment's packages."""
    return next((venv / "lib").glob("python*")) / "site-packages"


def _make_venv(scratch: Path, place: Path) -> None:
    """Make the virtual environment of a build around the packages that came with it."""
    venv.create(scratch / "venv", with_pip=False, symlinks=True)
    packages = site_packages(scratch / "venv")
    shutil.rmtree(packages)
    (scratch / PACKAGES).rename(packages)
    share_ours(scratch / "venv")
    for path in (*packages.glob("*.pth"), *packages.glob("__editable__*.py")):
        text = path.read_text(encoding="utf-8")
        if PLACE in text:
            path.write_text(text.replace(PLACE, str(place)), encoding="utf-8")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open_lock(path) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
