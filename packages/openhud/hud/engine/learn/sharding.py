"""Sharded weights: each rank has a slice of every tensor, and gathers the others' for one layer at a time (FSDP2).

Shards, fills and reads a decoder. All ranks must call these functions, in the same order.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)

from hud.engine.config import DecoderConfig
from hud.engine.learn.compiled_layers import compile_layers
from hud.engine.learn.process_group import ProcessGroup
from hud.engine.lora import LoraConfig, attach
from hud.engine.models.reference_decoder import ReferenceDecoder, inverse_frequencies


def sharded_decoder(
    config: DecoderConfig,
    dtype: torch.dtype,
    ranks: ProcessGroup,
    lora: LoraConfig | None = None,
    *,
    compiled: bool = False,
) -> ReferenceDecoder:
    """Return a decoder of which this rank holds its part, weights still to be filled in by `take_weights`."""
    with torch.device("meta"):
        decoder = ReferenceDecoder(config).to(dtype)
    if lora is not None:
        attach(decoder, lora)
    if compiled:  # Before sharding: gathering weights is not compiled.
        compile_layers(decoder)
    # Sums over ranks are formed in fp32, as those over passes are.
    policy = MixedPrecisionPolicy(reduce_dtype=torch.promote_types(dtype, torch.float32))
    for layer in decoder.model.layers:
        fully_shard(layer, mesh=ranks.mesh, mp_policy=policy)
        register_fsdp_forward_method(layer, "packed")
    # The vocabulary's weights serve both ends of a pass: they stay whole from its beginning to its end.
    fully_shard(decoder, mesh=ranks.mesh, mp_policy=policy, reshard_after_forward=False)
    register_fsdp_forward_method(decoder, "hidden_packed")
    for module in decoder.modules():
        if isinstance(module, FSDPModule):
            # Losses are sums over tokens, whichever rank computes them; an average would divide by the ranks.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    decoder.to_empty(device=ranks.device)
    decoder.rotary = inverse_frequencies(config).to(ranks.device)
    return decoder.train(False)


@torch.no_grad()
def take_weights(
    ranks: ProcessGroup, decoder: ReferenceDecoder, full_decoder: nn.Module | None
) -> None:
    """Fill a sharded decoder with the weights that rank 0 has in `full_decoder`; the other ranks have None."""
    weights = {} if full_decoder is None else dict(full_decoder.named_parameters())
    for name, parameter in decoder.named_parameters():
        ranks.local(parameter).copy_(ranks.shard(weights.get(name), parameter, parameter.dtype))


@torch.no_grad()
def give_weights(
    ranks: ProcessGroup, decoder: ReferenceDecoder, names: list[str], full_decoder: nn.Module | None
) -> None:
    """Copy weights of a sharded decoder into the decoder `full_decoder` that rank 0 has."""
    taken = {} if full_decoder is None else dict(full_decoder.named_parameters())
    held = dict(decoder.named_parameters())
    for name in names:
        full = ranks.gather_tensor(ranks.local(held[name]), held[name])
        if name in taken:
            taken[name].copy_(full)
