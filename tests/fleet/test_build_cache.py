"""Builds travel whole or not at all: packed once, verified, and installed in one step."""

import hashlib
import io
import subprocess
import venv

import pytest

from hud.errors import EnvironmentFault, InfrastructureFault
from hud.fleet.builds import build_cache
from hud.fleet.builds.build_cache import BuildCache, site_packages
from hud.fleet.builds.shared_packages import share_ours
from hud_platform.environments.packed_builds import pack


class Shelf:
    """A platform that has one packed build."""

    def __init__(self, content: bytes) -> None:
        self.content, self.asked = content, 0
        self.digest = hashlib.sha256(content).hexdigest()

    async def get(self, path):
        assert path == "/v2/fleet/builds/one"
        return {"digest": self.digest, "size": len(self.content)}

    async def download(self, path):
        assert path == f"/v2/fleet/packages/{self.digest}"
        self.asked += 1
        for start in range(0, len(self.content), 1000):
            yield self.content[start : start + 1000]


def packed(folder) -> bytes:
    file = io.BytesIO()
    pack(folder, "env.py", file)
    return file.getvalue()


@pytest.fixture
def built(tmp_path):
    """A build as the platform leaves it: a source, a package of its own, and an editable one that names the folder."""
    folder = tmp_path / "platform" / "build"
    (folder / "source" / "lib").mkdir(parents=True)
    (folder / "source" / "env.py").write_text("import own, mine\nprint(own.WORD, mine.WORD)\n")
    (folder / "source" / "lib" / "mine.py").write_text("WORD = 'editable'\n")
    venv.create(folder / "venv", with_pip=False)
    packages = site_packages(folder / "venv")
    (packages / "own.py").write_text("WORD = 'installed'\n")
    (packages / "mine.pth").write_text(f"{folder}/source/lib\n")
    share_ours(folder / "venv")
    return folder


def said(installed):
    command = [str(installed.python), str(installed.source)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


async def test_a_build_with_packages_runs_elsewhere_without_an_index(built, tmp_path):
    shelf, told = Shelf(packed(built)), []
    cache = BuildCache(tmp_path / "cache", shelf, told.append)
    installed = await cache.get("echo", "one")
    built.rename(built.parent / "gone")
    assert said(installed) == ["installed", "editable"]
    assert str(tmp_path / "cache") in str(installed.python)
    # What is the worker's own is its own: nothing of the platform's places came along.
    assert str(built).encode() not in shelf.content
    assert told[-1].startswith("echo: ready after ")
    again = BuildCache(tmp_path / "cache", shelf, told.append)
    assert await again.get("echo", "one") == installed
    assert shelf.asked == 1
    assert told[-1] == "echo: in the cache"


def test_equal_builds_are_packed_alike(built):
    assert packed(built) == packed(built)


async def test_a_damaged_build_is_refused_and_leaves_nothing(built, tmp_path):
    shelf = Shelf(packed(built))
    shelf.content = shelf.content[:-1] + b"x"
    cache = BuildCache(tmp_path / "cache", shelf, print)
    with pytest.raises(InfrastructureFault, match="arrived damaged"):
        await cache.get("echo", "one")
    assert list((tmp_path / "cache").iterdir()) == []


async def test_more_than_was_announced_is_not_read(built, tmp_path):
    shelf = Shelf(packed(built))
    content = shelf.content

    async def small(path):
        return {"digest": shelf.digest, "size": len(content) // 2}

    shelf.get = small
    with pytest.raises(InfrastructureFault, match="arrived damaged"):
        await BuildCache(tmp_path / "cache", shelf, print).get("echo", "one")


async def test_packages_of_another_platform_are_refused(built, tmp_path, monkeypatch):
    shelf = Shelf(packed(built))
    monkeypatch.setattr(build_cache, "platform_tag", lambda: "darwin-arm64-cp311")
    with pytest.raises(EnvironmentFault, match="this worker is darwin-arm64-cp311"):
        await BuildCache(tmp_path / "cache", shelf, print).get("echo", "one")
