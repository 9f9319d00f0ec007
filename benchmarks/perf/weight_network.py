"""A step's weights over HTTP to two nodes without the trainer's disk: changed bytes alone, against the whole version.

Weights in bf16 of the sizes 135M and 1B are rounded from masters in fp32, before and after a step of Adam's size (`LR` in each weight).
Both nodes are receivers of their own on loopback; a node that was lost and has no version gets the whole one.

python benchmarks/perf/weight_network.py
"""

from __future__ import annotations

import asyncio
import hashlib
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
        self.urls: list[str] = []
        self._processes = []
        for number in range(NODES):
            with socket.socket() as bound:
                bound.bind(("127.0.0.1", 0))
                port = bound.getsockname()[1]
            command = ["fleet", "receive", str(root / f"node-{number}"), "--port", str(port)]
            self._processes.append(
                subprocess.Popen([sys.executable, "-m", "hud.cli.main", *command])
            )
            self.urls.append(f"http://127.0.0.1:{port}")

    def __enter__(self) -> Receiving:
        for url in self.urls:
            _await_port(int(url.rpartition(":")[2]))
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait()


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


def verify(version: Version, root: Path) -> None:
    """Raise `SystemExit` unless every node has the version's bytes."""
    for number in range(NODES):
        received = root / f"node-{number}" / MODEL / version.folder.version / "model.safetensors"
        with received.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != version.folder.manifest.files["model.safetensors"].sha256:
            raise SystemExit(f"Node {number} has other bytes of {version.folder.version}.")


def measure(name: str, parameters: int, root: Path) -> None:
    """Report a size's seconds and bytes: the whole version, then a step's changes."""
    root.mkdir()
    first, second = (write(root / f"step-{step}", parameters, step=step) for step in (0, 1))
    for folder in (first, second):
        _ = folder.manifest  # Computed once a version, however many nodes there are.
    with Receiving(root) as nodes:
        _, whole_seconds = asyncio.run(place(nodes.urls, Version(MODEL, first)))
        step = Version(MODEL, second, (first,))
        sent, step_seconds = asyncio.run(place(nodes.urls, step))
        verify(step, root)
    total = sent[0].total_bytes
    print(
        f"{name}: {changed_share(first, second):.4f} of the bytes changed; "
        f"{sent[0].sent_bytes / 1e6:.1f} of {total / 1e6:.1f} MB sent to each of {NODES} nodes",
        flush=True,
    )
    report(
        f"a step of {name} to {NODES} nodes, bytes",
        sent[0].sent_bytes / 1e6,
        "MB",
        peer="the whole version",
        peer_value=total / 1e6,
    )
    report(
        f"a step of {name} to {NODES} nodes, seconds",
        step_seconds,
        "s",
        peer="the whole version",
        peer_value=whole_seconds,
    )


def main() -> None:
    """Measure every size."""
    for name, parameters in PARAMETERS.items():
        with tempfile.TemporaryDirectory() as folder:
            measure(name, parameters, Path(folder) / name)


if __name__ == "__main__":
    main()
