"""How long a workspace of an image takes until its first command's answer, and 64 at once: unpacked images, and containers.

Peers in the same run: `podman run` (or docker) of `true` in the same image, and bubblewrap alone with the mounts of an unpacked
image. Bars: with spares 20 ms; without spares 40 ms for an unpacked image, and 1.2 times `podman run` for a container.
"""

from __future__ import annotations

import asyncio
import io
import os
import re
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
from records import report
from sizes import size

from hud import Environment
from hud.capabilities.shell.ssh import SSHClient
from hud.environment import WorkspaceLimits
from hud.environment.workspace.sandbox.bubblewrap import command
from hud.environment.workspace.sandbox.root_image import SandboxImage
from hud.errors import InfrastructureFault
from hud.eval.runtimes.containers.container_engine import ContainerEngine, container_engine
from hud_integrations.containers import add_image, engine_image

RUNS, MANY = size((15, 64), (1, 2))
POOL_MS, DAEMONLESS_MS, OVER_RUN = 20.0, 40.0, 1.2
REFERENCE = "hud-bench/box:1"
PROGRAMS = ("/bin/sh", "/bin/bash", "/bin/true", "/bin/sleep", "/bin/cat")
SMALL = WorkspaceLimits(memory_mb=128, processes=32)


def archive() -> bytes:
    """Return a root file system of a shell and a few programs of this machine."""
    paths = set(PROGRAMS)
    for program in PROGRAMS:
        listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
        paths.update(re.findall(r"(/\S+) \(0x", listed.stdout))
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", dereference=True) as packed:
        for name in ("etc", "tmp", "root"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            packed.addfile(folder)
        for path in sorted(paths):
            packed.add(path, path[1:])
    return stream.getvalue()


def stored(engine: ContainerEngine, folder: Path) -> Path:
    """Store the image in the engine, and return an archive of it in a folder."""
    (folder / "root.tar").write_bytes(archive())
    for arguments in (
        ("import", str(folder / "root.tar"), REFERENCE),
        ("save", "--output", str(folder / "image.tar"), REFERENCE),
    ):
        subprocess.run([engine.program, *arguments], check=True, capture_output=True)
    return folder / "image.tar"


async def first_answer(environment: Environment) -> float:
    """Return the milliseconds from the request for a workspace to its first command's answer."""
    began = time.perf_counter()
    async with environment.run() as run:
        (shell,) = environment.parts.values()
        client = await SSHClient.connect(run.parts.of(shell).capability)
        assert (await client.run("echo here")).stdout == "here\n"
        taken = (time.perf_counter() - began) * 1000
        await client.close()
    return taken


async def answers(image: SandboxImage, spares: int) -> list[float]:
    """Return the times of runs one after another, each after its spares were up."""
    environment = Environment("bench")
    shell = environment.workspace(image=image, spares=spares)
    await first_answer(environment)
    times = []
    for _ in range(RUNS):
        # Starting is over, so that a run is not measured against the start of another run's spare.
        await asyncio.gather(*(asyncio.shield(spare._started) for spare in shell._spares._kept))
        times.append(await first_answer(environment))
    await shell._spares.close()
    return times


def timed(arguments: list[str], **options: object) -> float:
    """Return the milliseconds of a program."""
    began = time.perf_counter()
    subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL, **options)  # type: ignore[call-overload]
    return (time.perf_counter() - began) * 1000


def bare_bubblewrap(image: SandboxImage) -> Callable[[], float]:
    """Return the time of bubblewrap alone with the mounts of an image."""
    environment = Environment("bare")
    plan = environment.workspace(image=image).plan

    def run() -> float:
        with ExitStack() as stack:
            planned = command(plan, 0, stack, groups=())
            arguments = [*planned.arguments[: planned.arguments.index("--")], "--", "/bin/true"]
            return timed(arguments, cwd=planned.start_folder, env={"PATH": "/usr/bin:/bin"}, pass_fds=planned.descriptors)  # fmt: skip

    return run


async def many(image: SandboxImage) -> tuple[int, float]:
    """Return how many of the workspaces at once ran a tool of one second to its end, and the seconds of all."""
    environment = Environment("many")
    environment.workspace(image=image, limits=SMALL, spares=0)

    async def one() -> bool:
        async with environment.run() as run:
            (shell,) = environment.parts.values()
            client = await SSHClient.connect(run.parts.of(shell).capability)
            done = await client.run("sleep 1; echo done", timeout=300)
            await client.close()
            return bool(done.stdout == "done\n")

    began = time.perf_counter()
    ended = await asyncio.gather(*(one() for _ in range(MANY)), return_exceptions=True)
    return sum(result is True for result in ended), time.perf_counter() - began


def left_behind(engine: ContainerEngine | None) -> int:
    """Return the number of sandboxes of this process, and of containers of ours."""
    number = 0
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            number += any("run/hud/supervisor" in word for word in process.cmdline())
    if engine is not None:
        listed = subprocess.run([engine.program, "ps", "--all", "--format", "{{.Names}}"], capture_output=True, text=True, check=True)  # fmt: skip
        number += sum(name.startswith("hud-") for name in listed.stdout.split())
    return number


def runs(engine: ContainerEngine) -> bool:
    """Return whether the engine runs a container here."""
    done = subprocess.run([engine.program, "run", "--rm", "--network", "none", REFERENCE, "/bin/true"], capture_output=True, check=False)  # fmt: skip
    return done.returncode == 0


async def measure(name: str, image: SandboxImage, alone: Callable[[], float], peer: str, engine: ContainerEngine | None) -> None:  # fmt: skip
    """Report the times of one kind of image, in turns with its peer."""
    alone()
    peers = [alone() for _ in range(RUNS)]
    cold = await answers(image, 0)
    peers += [alone() for _ in range(RUNS)]
    warm = await answers(image, 2)
    base, empty = statistics.median(peers), statistics.median(cold)
    report(f"{name}: first answer, spares up", statistics.median(warm), "ms", bar=POOL_MS, at_most=True, peer=peer, peer_value=base)  # fmt: skip
    bar = DAEMONLESS_MS if engine is None else OVER_RUN * base
    report(f"{name}: first answer, no spares", empty, "ms", bar=bar, at_most=True, peer=peer, peer_value=base)  # fmt: skip
    before = left_behind(engine)
    ended, seconds = await many(image)
    report(f"{name}: ended of {MANY} at once, a tool of 1 s", ended, "workspaces", bar=MANY)
    report(f"{name}: {MANY} at once, a tool of 1 s, all", seconds, "s")
    report(f"{name}: left behind by {MANY} at once", left_behind(engine) - before, "things", bar=0, at_most=True)  # fmt: skip


async def main() -> None:
    """Measure what this machine has."""
    print("load", *os.getloadavg(), flush=True)
    try:
        engine = container_engine()
    except InfrastructureFault as fault:
        sys.exit(f"This needs docker or podman: {fault}")
    with tempfile.TemporaryDirectory() as home:
        os.environ["HUD_HOME"] = home
        await measure_all(engine, Path(home))
    print("load", *os.getloadavg(), flush=True)


async def measure_all(engine: ContainerEngine, folder: Path) -> None:
    """Measure both ways with a store and archives in a folder."""
    unpacked = add_image(stored(engine, folder), REFERENCE)
    if shutil.which("bwrap") is not None:
        await measure("an unpacked image", unpacked, bare_bubblewrap(unpacked), "bubblewrap", None)
    if runs(engine):
        run = [engine.program, "run", "--rm", "--pull=never", "--network", "none", REFERENCE, "/bin/true"]  # fmt: skip
        await measure(f"a container of {engine.program}", engine_image(REFERENCE), lambda: timed(run), f"{engine.program} run", engine)  # fmt: skip


if __name__ == "__main__":
    asyncio.run(main())
