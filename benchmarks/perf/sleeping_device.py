"""Stand-in for a GPU: the GPU's runner, whose recorded steps sleep in place of the device's work.

What is left is the host's work. `play` registers it as the CPU's kernels for this process and those that it starts, with
turns to sample; the processor time of the stand-in itself is counted apart.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sizes import size
from torch import Tensor

from hud.engine.decoder import Decoder
from hud.engine.kernels import KernelBackend
from hud.engine.learn.pass_computer import PassComputer
from hud.engine.sample.request import Request
from hud.engine.sample.runner import Sampled
from hud.engine.sample.scheduler import Chunk
from hud_kernels.cpu.backend import BACKEND as CPU
from hud_kernels.cuda.decode_step import DecodeGraphs
from hud_kernels.cuda.drawing import AHEAD
from hud_kernels.cuda.prefill import passes
from hud_kernels.cuda.runner import CudaRunner

DEVICE_SECONDS = size(0.002, 0.0)
TOKEN = 7
"""Token that is sampled where no turns are set."""
_FOLDER = "SLEEPING_DEVICE"


class Account:
    """Decode steps, processor time of the stand-in, and the process that samples; in a file for other processes."""

    def __init__(self, path: Path | None = None) -> None:
        self._values: NDArray[np.float64] = np.zeros(3)
        if path is not None:
            self._values = np.memmap(
                path, np.float64, mode="r+" if path.exists() else "w+", shape=(3,)
            )

    @property
    def steps(self) -> int:
        """Decode steps so far."""
        return int(self._values[0])

    @property
    def seconds(self) -> float:
        """Processor time of the stand-in so far."""
        return float(self._values[1])

    @property
    def process(self) -> int:
        """Id of the process that samples."""
        return int(self._values[2])

    def open(self) -> None:
        """Note that this process samples."""
        self._values[2] = os.getpid()

    def count(self) -> None:
        """Add a decode step."""
        self._values[0] += 1

    @contextmanager
    def device(self) -> Iterator[None]:
        """Count the block's processor time as the stand-in's."""
        began = time.thread_time()
        yield
        self._values[1] += time.thread_time() - began


class SleepingGraphs(DecodeGraphs):
    """Recorded steps that sleep, and sample the tokens of `coming`."""

    account = Account()

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.coming = np.full((self.sizes[-1], AHEAD), TOKEN)
        """Next tokens of each row."""
        self._step = 0

    @property
    def complete(self) -> bool:
        """True: there is nothing to record."""
        return True

    def sample(self, *arguments) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
        self._step = 0
        return super().sample(*arguments)

    def _launch(self, size: int, kind: str) -> Tensor:
        with self.account.device():
            time.sleep(DEVICE_SECONDS)
            self.account.count()
            if kind == "hidden":
                return torch.zeros(size, self.decoder.config.hidden_size)
            ids = torch.from_numpy(self.coming[:size, self._step])
            self._drawing.keep(ids, torch.full((size,), -1.0))
            self._step += 1
            return ids


class SleepingRunner(CudaRunner):
    """The GPU's runner over `SleepingGraphs`; prompts take the device no time."""

    turns: Sequence[Sequence[int]] = ()
    """Turns that are sampled, which begin with the same token."""

    def use(self, decoder: Decoder) -> None:
        super().use(decoder)
        self.graphs = SleepingGraphs(decoder, self.cache, self.most, self.bank)
        passes.hidden_states = _no_states

    def logits(self, hidden: Tensor) -> Tensor:
        if not self.turns:
            return super().logits(hidden)
        with SleepingGraphs.account.device():
            logits = torch.full((len(hidden), self.decoder.config.vocab_size), -100.0)
            logits[:, self.turns[0][0]] = 0
            return logits

    def decode(self, batch: Sequence[Chunk]) -> Sampled:
        if self.turns:
            with SleepingGraphs.account.device():
                for row, chunk in enumerate(batch):
                    ids = self._coming(chunk.request)
                    self.graphs.coming[row, : len(ids)] = ids
        return super().decode(batch)

    def _coming(self, request: Request) -> Sequence[int]:
        turn = self.turns[(request.params.seed or 0) % len(self.turns)]
        begun = len(request.token_ids)
        return turn[begun : begun + AHEAD]


def _no_states(decoder: Decoder, input_ids: Tensor, *_: object) -> Tensor:
    return torch.zeros(len(input_ids), decoder.config.hidden_size)


class SleepingBackend(KernelBackend):
    """The stand-in as the kernels of a CPU, with the turns of the folder that `play` wrote."""

    device = "cpu"

    def runner(self, decoder: Decoder, *, adapters: bool) -> type[SleepingRunner]:
        folder = Path(os.environ[_FOLDER])
        SleepingGraphs.account = Account(folder / "account")
        SleepingGraphs.account.open()
        SleepingRunner.turns = json.loads((folder / "turns.json").read_text())
        return SleepingRunner

    def pass_computer(self, decoder: Decoder) -> PassComputer | None:
        return CPU.pass_computer(decoder)


BACKEND = SleepingBackend()


def play(folder: Path, turns: Sequence[Sequence[int]]) -> Account:
    """Sample these turns on the stand-in, in this process and those that it starts from now on; return its account."""
    (folder / "turns.json").write_text(json.dumps(turns))
    account = Account(folder / "account")
    distribution = folder / "sleeping_device-0.dist-info"
    distribution.mkdir()
    (distribution / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: sleeping-device\nVersion: 0\n"
    )
    (distribution / "entry_points.txt").write_text(
        "[hud.runners]\nsleeping = sleeping_device:BACKEND\n"
    )
    paths = [str(folder), str(Path(__file__).parent)]
    sys.path[:0] = paths
    os.environ[_FOLDER] = str(folder)
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])
    os.environ["HUD_CPU_KERNELS"] = "0"
    os.environ["HUD_SAMPLERS"] = "1"
    return account
