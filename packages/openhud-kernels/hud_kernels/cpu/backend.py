"""The backend of CPUs: runners, and training passes of small fp32 models in compiled code (`engine.kernels`)."""

from __future__ import annotations

from hud import settings
from hud.engine.decoder import Decoder
from hud.engine.kernels import KernelBackend
from hud.engine.learn.pass_computer import PassComputer
from hud.engine.models.reference_decoder import ReferenceDecoder
from hud.engine.sample.runner import Runner


class CpuBackend(KernelBackend):
    """Kernels compiled by numba; imported when they are first used."""

    device = "cpu"

    @property
    def enabled(self) -> bool:
        """False with `HUD_CPU_KERNELS=0`."""
        return settings.load().cpu_kernels

    def runner(self, decoder: Decoder, *, adapters: bool) -> type[Runner] | None:
        """Return `CpuRunner` for a small fp32 decoder without adapters for each row, `PagedRunner` for other ones."""
        from hud_kernels.cpu.fused_decoder import can_be_fused
        from hud_kernels.cpu.paged_runner import PagedRunner, can_read_pages
        from hud_kernels.cpu.runner import CpuRunner

        if not adapters and can_be_fused(decoder):
            return CpuRunner
        return PagedRunner if can_read_pages(decoder) else None

    def pass_computer(self, decoder: Decoder) -> PassComputer | None:
        """Return the passes of a reference decoder; which layers gain is decided for each pass."""
        if not isinstance(decoder, ReferenceDecoder):
            return None
        from hud_kernels.cpu.passes import CpuPasses

        return CpuPasses(decoder)


BACKEND = CpuBackend()
