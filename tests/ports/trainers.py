"""Implementations of the port of trainers: one process, FSDP2 over a group of one rank, and a Tinker service's stand-in."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tests.engine.random_decoder import random_decoder
from torch.distributed.device_mesh import init_device_mesh

from hud.engine.learn.distributed import leading, open_trainer
from hud.engine.learn.local_trainer import LocalTrainer
from hud.engine.learn.process_group import ProcessGroup
from hud.engine.lora import LoraConfig
from hud.engine.trainer import Trainer
from hud.learning.datums import Datum
from hud_integrations.tinker.backend.trainer import TinkerTrainer
from hud_integrations.tinker.backend.weights import SavedPaths

ADAPTER = LoraConfig(rank=4)


@contextmanager
def one_rank(folder: Path) -> Iterator[None]:
    """Lead a process group of this process alone."""
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'rendezvous'}", rank=0, world_size=1
    )
    try:
        mesh = init_device_mesh("cpu", (1,))
        with leading(ProcessGroup(torch.device("cpu"), mesh, dist.new_group(backend="gloo"))):
            yield
    finally:
        dist.destroy_process_group()


class Service:
    """A client of a service that has AdamW, `cross_entropy` and logprobs, as Tinker's; it computes with an adapter here."""

    def __init__(self) -> None:
        self.trainer = LocalTrainer(random_decoder(), lora=ADAPTER)

    def forward(self, data, loss):
        assert loss == "cross_entropy"
        rows = self.trainer.forward([_datum(*pair) for pair in data])
        outputs = [{"logprobs": SimpleNamespace(to_numpy=lambda row=row: row[1:])} for row in rows]
        return _later(SimpleNamespace(loss_fn_outputs=outputs))

    def forward_backward(self, data, loss):
        assert loss == "cross_entropy"
        return _later(self.trainer.forward_backward([_datum(*pair) for pair in data], loss))

    def optim_step(self, params):
        arguments = dict(params)
        clip = arguments.pop("grad_clip_norm") or None
        return _later(
            SimpleNamespace(metrics=self.trainer.optim_step(**arguments, max_grad_norm=clip))
        )


class ServiceWeights:
    """`TinkerWeights` over the stand-in of a service."""

    def __init__(self) -> None:
        self.client = Service()

    def train(self, work):
        return work(self.client)

    def save(self, name):
        return SavedPaths(f"tinker://run/state/{name}", f"tinker://run/sampler/{name}")


def _later(value):
    return SimpleNamespace(result=lambda seconds: value)


def _datum(tokens: list[int], inputs: dict[str, np.ndarray]) -> Datum:
    """Return what position i's input, target of i + 1 and its weight are together."""
    targets = np.concatenate([[0], inputs["target_tokens"]])
    weights = np.concatenate([[0], inputs["weights"]]).astype(np.float32)
    mask = (weights != 0).astype(np.float32)
    nothing = np.zeros_like(mask)
    ids = np.array([*tokens, targets[-1]])
    return Datum(ids, mask, nothing, nothing, weights, np.ones_like(mask))


def _tinker_types() -> SimpleNamespace:
    return SimpleNamespace(
        Datum=lambda model_input, loss_fn_inputs: (model_input, loss_fn_inputs),
        ModelInput=SimpleNamespace(from_ints=list),
        AdamParams=dict,
    )


@contextmanager
def local(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Trainer]:
    yield LocalTrainer(random_decoder())


@contextmanager
def adapter(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Trainer]:
    yield LocalTrainer(random_decoder(), lora=ADAPTER)


@contextmanager
def distributed(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Trainer]:
    with one_rank(folder):
        yield open_trainer(random_decoder())


@contextmanager
def distributed_adapter(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Trainer]:
    with one_rank(folder):
        yield open_trainer(random_decoder(), lora=ADAPTER)


@contextmanager
def tinker(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Trainer]:
    patch.setitem(sys.modules, "tinker", SimpleNamespace(types=_tinker_types()))
    yield TinkerTrainer(ServiceWeights())


TRAINERS: dict[str, Callable] = {
    "one process": local,
    "one process, adapter": adapter,
    "FSDP2": distributed,
    "FSDP2, adapter": distributed_adapter,
    "Tinker": tinker,
}
