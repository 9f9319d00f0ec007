"""Memory of a vision tower: weights, activations and pixels. Sizes are those of the class's own configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hud.engine.config import DecoderConfig
from hud.engine.memory.model_shapes import FP32
from hud.errors import UsageError


@dataclass(frozen=True)
class Tower:
    """Dimensions of a vision tower, and parameters of its model, counted."""

    parameters: int
    """Of the tower and its projection."""
    text_parameters: int
    layers: int
    hidden: int
    intermediate: int
    patches_per_token: int
    """Patches that the tower computes for each picture token."""
    patch_values: int
    """Numbers of a patch that the processor makes."""

    def adapter_parameters(self, rank: int) -> int:
        """Return rank · layers · Σ (in + out) over q, k, v, o, up and down."""
        widths = 4 * 2 * self.hidden + 2 * (self.hidden + self.intermediate)
        return rank * self.layers * widths

    def activation_bytes(self, tokens: int, *, weight: int, trained: bool, recompute: bool) -> int:
        """Return the activations of pictures of `tokens` tokens.

        patches · `weight` bytes · layers' own values: two norms, queries, keys, values, attention's output, two residual sums
        (8 hidden), up and its activation (2 intermediate). A frozen tower keeps one layer's; with recomputation every layer's
        input beside.
        """
        layer = 8 * self.hidden + 2 * self.intermediate
        if not trained:
            values = layer
        elif recompute:
            values = self.layers * self.hidden + layer
        else:
            values = self.layers * layer
        return tokens * self.patches_per_token * weight * values

    def pixel_bytes(self, tokens: int, *, weight: int) -> int:
        """Return the pixels of pictures of `tokens` tokens: fp32 as the processor makes them, and in the weights' type."""
        copies = FP32 if weight == FP32 else FP32 + weight
        return tokens * self.patches_per_token * self.patch_values * copies


def tower_of(folder: Path) -> Tower | None:
    """Return the vision tower of a model folder; None for a model of text. Raises `UsageError` for an unknown layout."""
    if not DecoderConfig.from_folder(folder).reads_pictures:
        return None
    # Lazy: servers of text alone need neither.
    import torch

    from hud.engine.foreign.transformers_decoder import empty_transformers

    with torch.device("meta"):
        causal: Any = empty_transformers(folder)
    config = causal.config
    vision = config.vision_config
    text, head = causal.get_decoder(), causal.get_output_embeddings()
    total = sum(parameter.numel() for parameter in causal.parameters())
    of_text = {
        id(parameter): parameter.numel()
        for module in (text, head)
        for parameter in module.parameters()
    }
    text_parameters = sum(of_text.values())
    try:
        return Tower(
            parameters=total - text_parameters,
            text_parameters=text_parameters,
            layers=int(getattr(vision, "depth", None) or vision.num_hidden_layers),
            hidden=vision.hidden_size,
            intermediate=vision.intermediate_size,
            patches_per_token=_patches_per_token(config),
            patch_values=_patch_values(vision),
        )
    except AttributeError as error:
        raise UsageError(
            f"The memory of {config.model_type} models with pictures is not planned: its vision tower has no {error.name}."
        ) from None


def _patches_per_token(config: Any) -> int:
    """Return the patches of each picture token: those that are merged, or a picture's over its tokens."""
    vision = config.vision_config
    merged = getattr(vision, "spatial_merge_size", None) or getattr(config, "scale_factor", None)
    if merged is not None:
        return int(merged) ** 2
    return int((vision.image_size // vision.patch_size) ** 2 // config.mm_tokens_per_image)


def _patch_values(vision: Any) -> int:
    channels: Any = getattr(vision, "in_channels", None) or getattr(vision, "num_channels", 3)
    return int(channels * getattr(vision, "temporal_patch_size", 1) * vision.patch_size**2)
