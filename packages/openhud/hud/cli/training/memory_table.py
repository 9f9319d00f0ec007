"""The memory plan of `hud plan MODEL --gpu NAME`, also printed before `hud train` on a GPU of this machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hud.cli.output import Column, row, wrapped
from hud.engine.memory.model_shapes import GIB, Machine
from hud.engine.memory.trainer_memory import Training

if TYPE_CHECKING:
    from hud.engine.config import DecoderConfig
    from hud.engine.memory.one_gpu import SharedGpu
    from hud.engine.memory.tower import Tower
    from hud.train.config import TrainConfig
    from hud.train.planning.default_rates import DefaultRates

COLUMNS = (Column("memory of one GPU", 44, right=False), Column("GiB", 7))
FOLDER = {
    "training": "full",
    "lora_rank": 16,
    "dtype": "bfloat16",
    "optimizer_states": "float32",
    "offload_optimizer": False,
    "recompute_layers": True,
}
"""Training settings that are assumed for a folder."""
_TRAINED: dict[Training, dict[str, Any]] = {
    "full": {"training": "full", "optimizer_states": "float32", "offload_optimizer": False},
    "8bit": {"training": "full", "optimizer_states": "8bit", "offload_optimizer": False},
    "offload": {"training": "full", "offload_optimizer": True},
    "lora": {"training": "lora"},
}


async def plan_of(
    model: str, machine: Machine, *, longest: int, training: Training | None = None
) -> SharedGpu:
    """Return the plan of a folder, or of a registered model; `training` replaces the model's own.

    Raises `NotFoundError` for neither, and `UsageError` for a model without weights here.
    """
    from hud.engine.memory.one_gpu import shared_gpu

    config, tower, settings = await _described(model)
    settings = {**settings, **({} if training is None else _TRAINED[training])}
    return shared_gpu(config, settings, machine, longest=longest, tower=tower)


async def rates_of(model: str, plan: SharedGpu, training: Training | None) -> DefaultRates:
    """Return the default learning rates of a plan's training; arguments as of `plan_of`."""
    from hud.client import connect
    from hud.train.planning.default_rates import default_rates, rates_by_size

    if training is None and not _is_folder(model):
        return await default_rates(connect(), model)
    return rates_by_size(plan.parameters, lora=plan.training == "lora")


def _is_folder(model: str) -> bool:
    return (Path(model) / "config.json").is_file()


async def _described(model: str) -> tuple[DecoderConfig, Tower | None, dict[str, Any]]:
    from hud.cli.platform_requests import model_path
    from hud.client import connect
    from hud.engine.config import DecoderConfig
    from hud.engine.memory.tower import Tower, tower_of

    folder = Path(model)
    if _is_folder(model):
        return DecoderConfig.from_folder(folder), tower_of(folder), FOLDER
    client = connect()
    record = await client.get("/v2/models/resolve", params={"model": model})
    shape = await client.get(model_path(record["id"], "architecture"))
    tower = shape.pop("tower")
    del shape["parameters"]  # Those of a plan are counted by its configuration.
    return DecoderConfig(**shape), None if tower is None else Tower(**tower), record["config"]


def lines(plan: SharedGpu, gpu: str) -> Iterator[str]:
    """Yield the table, and what to lower if it does not fit."""
    yield f"{plan.parameters / 1e9:.2f}B parameters{_of_tower(plan)}, {_training(plan)}, on one {gpu}"
    yield row(COLUMNS, [column.name for column in COLUMNS])
    for name, size in parts(plan):
        yield row(COLUMNS, [name, f"{size / GIB:.2f}"])
    if plan.left < 0:
        sentence = f"Does not fit by {-plan.left / GIB:.2f} GiB. What needs less: {', '.join(plan.remedies)}."
        yield from wrapped(sentence, 0)


def parts(plan: SharedGpu) -> list[tuple[str, float]]:
    """Return the parts of the memory by name, in bytes, and what is left."""
    recomputed = "recomputed" if plan.options.recompute_layers else "kept"
    return [
        ("weights, of trainer and sampler", plan.trainer.weights),
        ("gradients", plan.trainer.gradients),
        ("optimizer states", plan.trainer.optimizer),
        (f"activations of {plan.tokens:,} tokens, {recomputed}", plan.trainer.activations),
        *_pictures(plan),
        ("logits of a chunk", plan.logits),
        (_cached(plan), plan.cache),
        ("left of 90% of the memory", plan.left),
    ]


def _of_tower(plan: SharedGpu) -> str:
    count = plan.tower_parameters
    return f" ({count / 1e9:.2f}B in the vision tower)" if count else ""


def _pictures(plan: SharedGpu) -> list[tuple[str, float]]:
    """Return the parts that a model of text does not have."""
    if not plan.tower_parameters:
        return []
    return [
        ("vision tower, if all tokens are pictures", plan.tower),
        ("pixels of those pictures", plan.pixels),
    ]


def _cached(plan: SharedGpu) -> str:
    if not plan.cache:
        return "key-value cache, on servers"
    return f"key-value cache, {plan.cached_tokens:,} tokens, {plan.slots} runs"


def as_data(plan: SharedGpu, gpu: str) -> dict[str, Any]:
    """Return the plan as plain data, in bytes."""
    return {"gpu": gpu, **dataclasses.asdict(plan), "left": plan.left, "remedies": plan.remedies}


def _training(plan: SharedGpu) -> str:
    return {
        "full": "full fine-tuning",
        "8bit": "full fine-tuning with 8-bit moments",
        "offload": "full fine-tuning with offloaded states",
        "lora": "LoRA",
    }[plan.training]


def cuda_device() -> tuple[str, float] | None:
    """Return the name and the memory in GiB of this machine's first GPU; None without one, and for several ranks."""
    import torch

    several = torch.distributed.is_available() and torch.distributed.is_initialized()
    if several or not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(0)
    return properties.name, properties.total_memory / GIB


async def before_training(config: TrainConfig) -> list[str]:
    """Return the lines of a run's plan, if this process trains it on a GPU; none for models that are not planned."""
    from hud.client import connect
    from hud.errors import UsageError

    device = None if connect().api_url is not None else cuda_device()
    if device is None:
        return []
    name, memory = device
    try:
        plan = await plan_of(config.model, Machine(memory_gib=memory), longest=config.max_tokens)
    except UsageError:  # The run itself reports a wrong name.
        return []
    return list(lines(plan, f"{name} of {memory:.0f} GiB"))
