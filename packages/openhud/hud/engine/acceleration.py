"""Selection of layers and runners that replace the reference's, by device and setting.

`HUD_CPU_KERNELS=0` and `HUD_CUDA_KERNELS=0` switch `engine/cpu` and `engine/cuda` off: everything is then computed with the
reference decoder, slower.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from hud import settings
from hud.engine.decoder import Decoder
from hud.engine.sample.runner import Runner

if TYPE_CHECKING:
    from hud.engine.pretrained import AnyDecoder
    from hud.engine.sample.adapter_bank import AdapterBank


def decoder_type(device: torch.device | str) -> type[Decoder]:
    """Return the class of decoders that are trained on `device`."""
    kind, now = torch.device(device).type, settings.load()
    if kind == "cpu" and now.cpu_kernels:
        from hud.engine.cpu.decoder import CpuDecoder

        return CpuDecoder
    if kind == "cuda" and now.cuda_kernels:
        from hud.engine.cuda.decoder import CudaDecoder

        return CudaDecoder
    return Decoder


def runner_type(decoder: AnyDecoder, bank: AdapterBank | None = None) -> type[Runner]:
    """Return the class that computes a sampler's passes with `decoder`."""
    now = settings.load()
    # An adapter for each row is computed on a CPU by the reference alone.
    if decoder.device.type == "cpu" and now.cpu_kernels and bank is None:
        from hud.engine.cpu.fused_decoder import can_be_fused
        from hud.engine.cpu.runner import CpuRunner

        if can_be_fused(decoder):
            return CpuRunner
    if decoder.device.type == "cuda" and now.cuda_kernels and _paged(decoder):
        from hud.engine.cuda.runner import CudaRunner

        return CudaRunner
    return Runner


def _paged(decoder: AnyDecoder) -> bool:
    """Return whether `engine/cuda/paged_attention.py` supports the decoder's head sizes."""
    size = decoder.config.head_dim
    fits = isinstance(decoder, Decoder) and size >= 16 and size.bit_count() == 1
    return fits and find_spec("triton") is not None
