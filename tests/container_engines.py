"""The container engine of this machine, where one runs containers, and small images made of this machine's files."""

from __future__ import annotations

import functools
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest

from hud.errors import InfrastructureFault
from hud.eval.runtimes.containers.container_engine import ContainerEngine, container_engine
from tests.lasting_folders import lasting_folder
from tests.sources import ROOT

TINY = "hud-tests/tiny:1"
BOX = "hud-tests/box:1"
_LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}
_CONFIGURATION = """
[engine]
runtime = "runc"
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
"""
"""For machines with control groups of both versions, which crun refuses, and whose root cannot raise limits."""


@functools.cache
def working_engine() -> ContainerEngine | None:
    """Return the engine if it runs a container here; podman may get a configuration of its own for it."""
    try:
        engine = container_engine()
        build_image(TINY, "FROM scratch\nCOPY root/ /\n")
    except (InfrastructureFault, subprocess.CalledProcessError):
        return None
    if _runs(engine):
        return engine
    if engine.program == "podman" and "CONTAINERS_CONF" not in os.environ:
        path = lasting_folder("hud-containers-") / "containers.conf"
        path.write_text(_CONFIGURATION)
        os.environ["CONTAINERS_CONF"] = str(path)
        if _runs(engine):
            return engine
    return None


def require_engine() -> ContainerEngine:
    """Return the engine; skips the test where none runs containers."""
    engine = working_engine()
    if engine is None:
        pytest.skip("no docker or podman runs containers here: scripts/setup-worlds podman runc")
    return engine


def imported_image(reference: str, members: list[tuple[tarfile.TarInfo, bytes]]) -> str:
    """Store an image of the members of a layer, with a shell; returns its reference."""
    with tempfile.NamedTemporaryFile(suffix=".tar") as file:
        with tarfile.open(fileobj=file, mode="w") as archive:
            for info, content in members:
                archive.addfile(info, io.BytesIO(content))
        file.flush()
        command = [container_engine().program, "import", file.name, reference]
        subprocess.run(command, check=True, capture_output=True)
    return reference


def machine_mounts() -> dict[str, str]:
    """Return mounts of this machine's programs and of this Python, for images of `build_image`."""
    python = Path(sys.executable).resolve()
    folders = ["/usr", str(ROOT), str(python.parent.parent), str(Path(sys.prefix))]
    return {folder: folder for folder in folders}


def build_image(image: str, dockerfile: str) -> None:
    """Build an image whose context has `root/`: the links of a merged /usr, and /tmp."""
    program = container_engine().program
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        for name in ("usr", "tmp", "etc", "proc", "env"):
            (root / name).mkdir(parents=True)
        for name, target in _LINKS.items():
            (root / name).symlink_to(target)
        (Path(folder) / "Dockerfile").write_text(dockerfile)
        command = [program, "build", "--quiet", "--tag", image, folder]
        subprocess.run(command, check=True, capture_output=True)


def _runs(engine: ContainerEngine) -> bool:
    limits = ["--memory", "64m", "--cpus", "1", "--pids-limit", "20"]
    command = [engine.program, "run", "--rm", "--pull=never", *limits, "-v", "/usr:/usr:ro"]
    return subprocess.run([*command, TINY, "/bin/true"], capture_output=True).returncode == 0
