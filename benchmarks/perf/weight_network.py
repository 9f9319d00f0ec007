"""A step's weights over HTTP to two nodes without the trainer's disk: changed bytes alone, against the whole version.

Weights in bf16 of the sizes 135M and 1B are rounded from masters in fp32, before and after steps of Adam's size (`LR` in each weight).
Both nodes are receivers of their own on loopback. One is killed and misses a step: it catches up with the changes since its last
version; killed again and without its disk, it gets the whole version. Every node's bytes are compared by SHA-256 after each.

python benchmarks/perf/weight_network.py [135M] [1B]
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
import numpy as np
from records import report
from sizes import size

from hud_integrations.vllm.weight_files.folder import WeightFolder
from hud_integrations.vllm.weight_files.sender import Node, Placement, Version

PARAMETERS = size({"135M": 135_000_000, "1B": 1_000_000_000}, {"1M": 1_000_000})
LR = 1e-6
"""Change of each weight in a step: a learning rate of reinforcement learning on all weights."""
NODES = 2
MOST_BYTES = 1.5
"""Most bytes that are sent for each that changed: with its place, and compressed."""
MODEL = "model"
PART = 1 << 24
"""Parameters that are made at once."""


def write(folder: Path, parameters: int, *, step: int) -> WeightFolder:
    """Write weights after a number of steps, in bf16."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    with (folder / "model.safetensors").open("wb") as file:
        for start in range(0, parameters, PART):
            count = min(PART, parameters - start)
            masters = rng.standard_normal(count, np.float32) * np.float32(0.02)
            signs = rng.integers(0, 2, count, np.int8).astype(np.float32) * 2 - 1
            bits = (masters + signs * np.float32(LR * step)).view(np.uint32)
            file.write(((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes())
    return WeightFolder(f"step-{step}", folder)


def changed_share(first: WeightFolder, second: WeightFolder) -> float:
    """Return the share of bytes that differ between two versions."""
    left, right = (
        np.memmap(folder.path / "model.safetensors", np.uint8, "r") for folder in (first, second)
    )
    counts = (
        int((left[start : start + PART] != right[start : start + PART]).sum())
        for start in range(0, len(left), PART)
    )
    return sum(counts) / len(left)


class Receiving:
    """Receivers in processes of their own, as `hud fleet receive` starts them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.urls: list[str] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        for number in range(NODES):
            with socket.socket() as bound:
                bound.bind(("127.0.0.1", 0))
                self.urls.append(f"http://127.0.0.1:{bound.getsockname()[1]}")
            self._processes.append(self._started(number))

    def __enter__(self) -> Receiving:
        for url in self.urls:
            _await_port(_port(url))
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait()

    def kill(self, number: int) -> None:
        """Kill a node's receiver."""
        self._processes[number].kill()
        self._processes[number].wait()

    def restart(self, number: int) -> None:
        """Start a killed receiver again, over what its disk holds."""
        self._processes[number] = self._started(number)
        _await_port(_port(self.urls[number]))

    def disk(self, number: int) -> Path:
        """Return the folder of a node's versions."""
        return self.root / f"node-{number}"

    def _started(self, number: int) -> subprocess.Popen[bytes]:
        port = str(_port(self.urls[number]))
        command = ["fleet", "receive", str(self.disk(number)), "--port", port]
        return subprocess.Popen([sys.executable, "-m", "hud.cli.main", *command])


def _port(url: str) -> int:
    return int(url.rpartition(":")[2])


def _await_port(port: int) -> None:
    late = time.monotonic() + 60
    while time.monotonic() < late:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise SystemExit(f"No receiver answers at port {port}.")


async def place(urls: list[str], version: Version) -> tuple[list[Placement], float]:
    """Send a version to all nodes at once; return what was sent, and the seconds until the last has it."""
    async with aiohttp.ClientSession() as session:
        began = time.perf_counter()
        placements = await asyncio.gather(
            *(Node(url, session, None).place(version) for url in urls)
        )
        return list(placements), time.perf_counter() - began


def verify(version: Version, nodes: Receiving) -> None:
    """Raise `SystemExit` unless every node has the version's bytes."""
    for number in range(NODES):
        folder = nodes.disk(number) / MODEL / version.folder.version
        with (folder / "model.safetensors").open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != version.folder.manifest.files["model.safetensors"].sha256:
            raise SystemExit(f"Node {number} has other bytes of {version.folder.version}.")


def measure(name: str, parameters: int, root: Path) -> bool:
    """Report a size's seconds and bytes: the whole version, a step's changes, and a lost node; return whether bars are held."""
    root.mkdir()
    folders = [write(root / f"step-{step}", parameters, step=step) for step in range(3)]
    for folder in folders:
        _ = folder.manifest  # Computed once a version, however many nodes there are.
    first, second, third = folders
    step = Version(MODEL, second, (first,))
    missed = Version(MODEL, third, (first, second))
    with Receiving(root) as nodes:
        _, whole_seconds = asyncio.run(place(nodes.urls, Version(MODEL, first)))
        sent, step_seconds = asyncio.run(place(nodes.urls, step))
        verify(step, nodes)
        nodes.kill(1)
        asyncio.run(place(nodes.urls[:1], missed))
        nodes.restart(1)
        caught_up, caught_up_seconds = asyncio.run(place(nodes.urls[1:], missed))
        verify(missed, nodes)
        nodes.kill(1)
        shutil.rmtree(nodes.disk(1))
        nodes.restart(1)
        again, again_seconds = asyncio.run(place(nodes.urls[1:], missed))
        verify(missed, nodes)
    total = sent[0].total_bytes
    changed = changed_share(first, second) * total
    whole = f"the whole version of {name}"
    held = report(
        f"a step of {name} to each of {NODES} nodes, bytes",
        sent[0].sent_bytes / 1e6,
        "MB",
        bar=MOST_BYTES * changed / 1e6,
        at_most=True,
        peer="the bytes that changed",
        peer_value=changed / 1e6,
    )
    report(f"{whole}, bytes", total / 1e6, "MB")
    report(
        f"a step of {name} to {NODES} nodes, seconds",
        step_seconds,
        "s",
        peer="the whole version",
        peer_value=whole_seconds,
    )
    report(
        f"a step of {name} that a node missed, bytes",
        caught_up[0].sent_bytes / 1e6,
        "MB",
        peer="the whole version",
        peer_value=total / 1e6,
    )
    report(f"a step of {name} that a node missed, seconds", caught_up_seconds, "s")
    report(
        f"{whole} to a node that lost its disk, seconds",
        again_seconds,
        "s",
        ratio=again[0].sent_bytes / total,
    )
    return held


def main() -> int:
    """Measure the named sizes, or all; return 1 where a bar is missed."""
    held = True
    for name in sys.argv[1:] or PARAMETERS:
        with tempfile.TemporaryDirectory() as folder:
            held &= measure(name, PARAMETERS[name], Path(folder) / name)
    return int(not held)


if __name__ == "__main__":
    sys.exit(main())
