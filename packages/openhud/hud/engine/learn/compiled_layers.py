"""Layers compiled by `torch.compile` for training: norms, rotations, gates and their gradients fused into few kernels.

Compiling takes a minute or more, once for each process; it pays in long runs on a GPU, and not for small models on a CPU.
Attention is not part of it: it is one kernel already, and its shapes change with every batch.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from hud.engine.decoder import Decoder
from hud.engine.models.attention import AnyPacking, chosen
from hud.engine.models.reference_decoder import Layer, PackedLayers, ReferenceDecoder
from hud.errors import UsageError


def compile_layers(decoder: Decoder) -> None:
    """Compile what each layer does with packed sequences, in place. Sampling is left as it is.

    Raises `UsageError` for a decoder that is not our own.
    """
    if not decoder.config.ours:
        raise UsageError(
            "Only models of the Llama, Qwen2 and Qwen3 families are compiled; make this one without --compile-layers."
        )
    assert isinstance(decoder, ReferenceDecoder)
    # All layers share the compiled code; the number of tokens is a symbol in it, so that no batch compiles it anew.
    before = torch.compile(_projected, dynamic=True)
    after = torch.compile(Layer.finish, dynamic=True)

    def packed(
        layer: Layer,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        packing: AnyPacking,
        rows: Tensor | None = None,
        layers: PackedLayers | None = None,
    ) -> Tensor:
        del layers  # Compiled here.
        q, k, v = before(layer, x, cos, sin)
        output: Tensor = after(layer, chosen(rows, x), packing.attend(q, k, v, rows))
        return output

    for layer in decoder.model.layers:
        assert isinstance(layer, Layer)
        layer.packed = partial(packed, layer)  # type: ignore[method-assign]


def _projected(layer: Layer, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return layer.self_attn.project(layer.input_layernorm(x), cos, sin)
