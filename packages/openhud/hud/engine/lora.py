"""LoRA adapters (arXiv 2106.09685): a trained low-rank term added to a frozen linear layer.

    y = x Wᵀ + b + (alpha / rank) · x Aᵀ Bᵀ        A: (rank, in), B: (out, rank), B = 0 at the start

`attach` wraps layers in place, so a sampler that computes with the same decoder samples from the adapted policy as
soon as a step changes A and B. Fused experts get a term for each expert (`models.expert_adapters`). Saved adapters are in PEFT's
format, for other tools to load.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from hud.engine.config import ADAPTER_CONFIG
from hud.engine.decoder import Decoder
from hud.engine.models.expert_adapters import LoraExperts, adapt, adapters_of, expert_weights, fold
from hud.engine.models.tensor_file import write_tensors
from hud.errors import StoreError, UsageError

DEFAULT_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

FUSED = {"gate_up_proj": {"gate_proj", "up_proj"}}
"""Stacked weights that stand for several layers: targets as those are."""

_PEFT_PREFIX = "base_model.model."
_WEIGHTS = "adapter_model.safetensors"


@dataclass(frozen=True)
class LoraConfig:
    """Size and place of adapters."""

    rank: int = 16
    alpha: float = 32.0
    targets: tuple[str, ...] = DEFAULT_TARGETS
    """Last parts of the names of the linear layers, and of the stacked weights of experts, that get one."""
    tower: bool = False
    """True: also in the vision tower and its projection, of a model with pictures."""
    seed: int = 0
    """Seed of the random A matrices."""

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise UsageError(f"The LoRA rank is {self.rank}; it must be at least 1.")
        if not self.targets:
            raise UsageError("LoRA has no targets; name at least one layer, such as q_proj.")

    @property
    def scale(self) -> float:
        """Factor of the low-rank term."""
        return self.alpha / self.rank


class LoraLinear(nn.Module):
    """A frozen linear layer with a trained low-rank term, in the layer's place."""

    def __init__(self, base: nn.Linear, config: LoraConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.base = base
        self.scale = config.scale
        self.enabled = True
        self.in_features, self.out_features = base.in_features, base.out_features
        # Adapters stay in fp32 where the layer computes in less: their updates are small.
        dtype = torch.promote_types(base.weight.dtype, torch.float32)
        bound = 1 / math.sqrt(base.in_features)  # kaiming_uniform with a = √5, as PEFT draws it
        drawn = torch.rand(config.rank, base.in_features, generator=generator, dtype=torch.float32)
        device = base.weight.device
        self.lora_A = nn.Parameter(((drawn * 2 - 1) * bound).to(device=device, dtype=dtype))
        self.lora_B = nn.Parameter(
            torch.zeros(base.out_features, config.rank, device=device, dtype=dtype)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output, with the low-rank term while it is enabled."""
        y: Tensor = self.base(x)
        if not self.enabled:
            return y
        # In the layer's dtype: products sum in fp32 all the same, and no fp32 copy of x or y is made.
        low = F.linear(x, self.lora_A.to(x.dtype))
        terms = low.view(-1, self.rank), self.lora_B.to(y.dtype).T
        y.view(-1, self.out_features).addmm_(*terms, alpha=self.scale)
        return y

    @property
    def rank(self) -> int:
        """Rank of the term."""
        return self.lora_A.shape[0]

    @property
    def weight(self) -> Tensor:
        """The weight that is computed with: some classes of `transformers` read it instead of calling the layer."""
        return self._merged() if self.enabled else self.base.weight

    @property
    def bias(self) -> Tensor | None:
        """The layer's bias."""
        return self.base.bias

    @torch.no_grad()
    def merged_weight(self) -> Tensor:
        """Return W + (alpha / rank) B A, in the layer's precision."""
        return self._merged()

    def _merged(self) -> Tensor:
        delta = (self.lora_B @ self.lora_A) * self.scale
        return (self.base.weight.to(delta.dtype) + delta).to(self.base.weight.dtype)


def check_targets(decoder: nn.Module, targets: tuple[str, ...]) -> None:
    """Raise `UsageError` for targets that no layer of a decoder has; of the default ones, some may be missing."""
    layers = {
        name.removesuffix(".base").rpartition(".")[2]
        for name, module in decoder.named_modules()
        if isinstance(module, nn.Linear)
    }
    layers |= {own for _, _, own in expert_weights(decoder)}
    unknown = sorted(set(targets) - layers)
    if unknown and (set(targets) != set(DEFAULT_TARGETS) or layers.isdisjoint(targets)):
        raise UsageError(
            f"This model has no layer named {', '.join(unknown)}; its linear layers are: {', '.join(sorted(layers))}."
        )


def attach(decoder: Decoder, config: LoraConfig) -> None:
    """Freeze a decoder and wrap its target layers. Wrapped layers of the same rank are left as they are.

    Raises `UsageError` for layers wrapped with another rank or scale, and for targets that are no layers.
    """
    check_targets(decoder, config.targets)
    decoder.requires_grad_(False)
    generator = torch.Generator().manual_seed(config.seed)
    tower = () if config.tower else tuple(f"{module}." for module in decoder.tower_modules)
    for name, module in list(decoder.named_modules()):
        if isinstance(module, LoraLinear | LoraExperts):
            _check_shape(name, module, config)
            module.lora_A.requires_grad_(True)
            module.lora_B.requires_grad_(True)
        elif isinstance(module, nn.Linear) and name.rpartition(".")[2] in config.targets:
            if name.startswith(tower):
                continue
            parent, _, last = name.rpartition(".")
            setattr(decoder.get_submodule(parent), last, LoraLinear(module, config, generator))
    for name, owner, own in list(expert_weights(decoder)):
        if not name.startswith(tower) and own not in adapters_of(owner) and _is_target(own, config):
            adapt(owner, own, config.rank, config.scale, generator)


def _is_target(stacked: str, config: LoraConfig) -> bool:
    """Return whether a stacked weight gets an adapter: by its name, or by those of all layers that it stands for."""
    parts = FUSED.get(stacked)
    return stacked in config.targets or (parts is not None and parts <= set(config.targets))


def _check_shape(name: str, layer: LoraLinear | LoraExperts, config: LoraConfig) -> None:
    if layer.rank != config.rank or layer.scale != config.scale:
        raise UsageError(
            f"{name} already has an adapter of rank {layer.rank}; this one has rank {config.rank}."
        )


def lora_parameters(decoder: nn.Module) -> dict[str, nn.Parameter]:
    """Return the adapters' parameters by name."""
    return {
        name: parameter
        for name, parameter in decoder.named_parameters()
        if name.endswith((".lora_A", ".lora_B"))
    }


def lora_layers(decoder: nn.Module) -> dict[str, LoraLinear]:
    """Return the wrapped layers by name."""
    return {
        name: module for name, module in decoder.named_modules() if isinstance(module, LoraLinear)
    }


@contextmanager
def disabled(decoder: nn.Module) -> Iterator[None]:
    """Compute with the base weights alone inside the block."""
    layers = [
        module for module in decoder.modules() if isinstance(module, LoraLinear | LoraExperts)
    ]
    for layer in layers:
        layer.enabled = False
    try:
        yield
    finally:
        for layer in layers:
            layer.enabled = True


@torch.no_grad()
def merge(decoder: nn.Module) -> None:
    """Fold the adapters into the weights and unwrap the layers, for good."""
    for name, layer in lora_layers(decoder).items():
        layer.base.weight.copy_(layer.merged_weight())
        parent, _, last = name.rpartition(".")
        setattr(decoder.get_submodule(parent), last, layer.base)
    for owner in list(decoder.modules()):
        if adapters_of(owner):
            fold(owner)


def save_adapter(decoder: Decoder, config: LoraConfig, folder: Path, *, base: str = "") -> None:
    """Write `adapter_model.safetensors` and `adapter_config.json` into an existing folder."""
    tensors = {
        name: parameter.detach().contiguous().cpu()
        for name, parameter in _peft_parameters(decoder).items()
    }
    write_tensors(tensors, folder / _WEIGHTS, metadata={"format": "pt"})
    described = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": config.rank,
        "lora_alpha": config.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        **_peft_targets(decoder),
    }
    if decoder.tower_modules and not config.tower:
        modules = "|".join(
            re.escape(module.removeprefix(decoder.name_prefix)) for module in decoder.tower_modules
        )
        described["exclude_modules"] = rf"({modules})\..*"
    (folder / ADAPTER_CONFIG).write_text(json.dumps(described, indent=2) + "\n")


def _peft_targets(decoder: Decoder) -> dict[str, list[str]]:
    """Return the names of the adapted layers and stacked weights, as PEFT's configuration has them."""
    layers = {name.rpartition(".")[2] for name in lora_layers(decoder)}
    stacked = {
        f"{name.rpartition('.')[2]}.{own}": own
        for name, owner, own in expert_weights(decoder)
        if own in adapters_of(owner)
    }
    if not stacked:
        return {"target_modules": sorted(layers)}
    # PEFT takes the names of experts' layers among `target_modules` for the stacked weights: others are named by their weights.
    of_experts = {part for own in stacked.values() for part in FUSED.get(own, {own})} & layers
    return {
        "target_modules": sorted(layers - of_experts),
        "target_parameters": sorted([*stacked, *(f"{name}.weight" for name in of_experts)]),
    }


def _peft_parameters(decoder: Decoder) -> dict[str, nn.Parameter]:
    """Return the adapters' parameters by their names in PEFT's files."""
    named: dict[str, nn.Parameter] = {}
    layers: dict[str, LoraLinear | LoraExperts] = dict(lora_layers(decoder))
    for name, owner in decoder.named_modules():
        # PEFT nests the adapters of one module: that of the last weight is the outermost.
        for depth, adapter in enumerate(reversed(adapters_of(owner).values())):
            layers[name + ".base_layer" * depth] = adapter
    for name, layer in layers.items():
        path = _PEFT_PREFIX + name.removeprefix(decoder.name_prefix)
        named |= {f"{path}.lora_A.weight": layer.lora_A, f"{path}.lora_B.weight": layer.lora_B}
    return named


def read_adapter_config(folder: Path) -> LoraConfig:
    """Return the configuration of a saved adapter. Raises `StoreError` if it is missing or damaged."""
    try:
        read: dict[str, Any] = json.loads((folder / ADAPTER_CONFIG).read_text())
        targets = read["target_modules"]
        weights = [name.removesuffix(".weight") for name in read.get("target_parameters") or ()]
        stacked = [name.rpartition(".")[2] for name in weights]
        return LoraConfig(
            rank=int(read["r"]),
            alpha=float(read["lora_alpha"]),
            targets=tuple(
                dict.fromkeys([*([targets] if isinstance(targets, str) else targets), *stacked])
            ),
            tower="exclude_modules" not in read,
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{folder / ADAPTER_CONFIG} cannot be read as an adapter's configuration: {error}."
        ) from error


@torch.no_grad()
def load_adapter(decoder: Decoder, folder: Path) -> LoraConfig:
    """Put a saved adapter on a decoder, in place; the decoder is wrapped first where it is not yet.

    Raises `StoreError` if its files are missing, damaged or another model's.
    """
    config = read_adapter_config(folder)
    if not decoder.tower_modules:
        config = replace(config, tower=False)
    try:
        tensors = load_file(folder / _WEIGHTS)
    except Exception as error:  # safetensors raises its own kind, which is no public name
        raise StoreError(f"{folder / _WEIGHTS} is damaged or missing: {error}.") from error
    attach(decoder, config)
    wanted = _peft_parameters(decoder)
    wrong = [
        name for name in wanted if name not in tensors or tensors[name].shape != wanted[name].shape
    ]
    if wrong or len(tensors) != len(wanted):
        odd = wrong or sorted(tensors.keys() - wanted.keys())
        raise StoreError(f"{folder} holds an adapter of another model: {odd[0]} does not fit.")
    for name, parameter in wanted.items():
        parameter.copy_(tensors[name])
    return config
