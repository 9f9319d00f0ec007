"""The dtype in which this machine computes a model fastest."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from time import perf_counter

import torch
import torch.nn.functional as F

from hud.engine.config import DecoderConfig
from hud.engine.cpu_threads import SMALL_PARAMETERS
from hud.engine.kernels import backend_for
from hud.engine.models.reference_decoder import ReferenceDecoder

WIDEST_BYTES = 2 << 30
"""Weights of more bytes than this keep their type: they would take as many again."""
_ROWS, _SIZE, _TIMES = 64, 512, 9


def computing_type(
    dtype: torch.dtype,
    device: torch.device | str,
    folder: Path | None = None,
    *,
    adapters: bool = False,
) -> torch.dtype:
    """Return what weights of `dtype` are best computed in: `dtype`, or on a CPU fp32 where that is faster.

    It is for small models, whose compiled passes are in fp32, on every CPU; and for others, such as those with banks of
    `adapters`, on one without matrix instructions for bfloat16, which may take twice as long, and loses digits besides. The
    weights of `folder` keep their type where they are large.
    """
    if dtype == torch.float32 or torch.device(device).type != "cpu":
        return dtype
    if folder is not None:
        if sum(path.stat().st_size for path in folder.glob("*.safetensors")) > WIDEST_BYTES:
            return dtype
        if not adapters and _compiled(folder):
            return torch.float32
    return torch.float32 if slower_than_fp32(dtype) else dtype


@cache
def slower_than_fp32(dtype: torch.dtype) -> bool:
    """Return True if a product in `dtype` takes longer than in fp32, as measured once on this CPU."""
    return _seconds(dtype) > _seconds(torch.float32)


def _seconds(dtype: torch.dtype) -> float:
    x, weight = torch.ones(_ROWS, _SIZE, dtype=dtype), torch.ones(_SIZE, _SIZE, dtype=dtype)
    times = []
    with torch.inference_mode():
        for _ in range(_TIMES):
            began = perf_counter()
            F.linear(x, weight)
            times.append(perf_counter() - began)
    return min(times)  # Whatever else the machine does makes it longer.


def _compiled(folder: Path) -> bool:
    """Return whether passes of a folder's model are computed in compiled code."""
    config = DecoderConfig.from_folder(folder)
    if not config.ours or backend_for("cpu") is None:
        return False
    with torch.device("meta"):
        return (
            sum(parameter.numel() for parameter in ReferenceDecoder(config).parameters())
            <= SMALL_PARAMETERS
        )
