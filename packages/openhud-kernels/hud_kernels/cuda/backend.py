"""The backend of CUDA GPUs: recorded decode steps, and training passes without padding (`engine.kernels`)."""

from __future__ import annotations

from importlib.util import find_spec

from hud import settings
from hud.engine.decoder import Decoder
from hud.engine.kernels import KernelBackend
from hud.engine.learn.pass_computer import PassComputer
from hud.engine.models.reference_decoder import ReferenceDecoder
from hud.engine.sample.runner import Runner


class CudaBackend(KernelBackend):
    """Kernels in Triton, and torch's; imported when they are first used."""

    device = "cuda"

    @property
    def enabled(self) -> bool:
        """False with `HUD_CUDA_KERNELS=0`."""
        return settings.load().cuda_kernels

    def runner(self, decoder: Decoder, *, adapters: bool) -> type[Runner] | None:
        """Return `CudaRunner`, where `paged_attention` supports the size of the decoder's heads and Triton is installed."""
        del adapters  # Recorded steps compute them, too.
        size = decoder.config.head_dim
        fits = isinstance(decoder, ReferenceDecoder) and size >= 16 and size.bit_count() == 1
        if not fits or find_spec("triton") is None:
            return None
        from hud_kernels.cuda.runner import CudaRunner

        return CudaRunner

    def pass_computer(self, decoder: Decoder) -> PassComputer | None:
        """Return the passes of a reference decoder."""
        if not isinstance(decoder, ReferenceDecoder):
            return None
        from hud_kernels.cuda.passes import CudaPasses

        return CudaPasses(decoder)


BACKEND = CudaBackend()
