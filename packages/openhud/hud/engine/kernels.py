"""The port of kernel backends: faster code for one kind of device, registered by the entry point group `hud.runners`.

    [project.entry-points."hud.runners"]
    cpu = "hud_kernels.cpu.backend:BACKEND"

The entry point is a `KernelBackend`. It offers any of two parts, a runner and a pass computer; for what it declines, the
reference computes the same, slower. Without any backend all is computed by the reference. `docs/extending.md` has an example.
"""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar

import torch

from hud import plugs
from hud.engine.decoder import Decoder
from hud.errors import UsageError

GROUP = "hud.runners"


class KernelBackend:
    """The kernels of one kind of device."""

    device: ClassVar[str]
    """Kind of device: `cpu`, `cuda`, or another of torch's."""

    @property
    def enabled(self) -> bool:
        """False: a setting switches it off, or the machine lacks what it needs. Read again for each decoder."""
        return True

    def runner(self, decoder: Decoder, *, adapters: bool) -> Any:
        """Return the class, a `sample.runner.Runner`, that samples with `decoder`; None: the plain runner.

        `adapters`: with an adapter for each row, from a bank. Called once for each sampler.
        """
        del decoder, adapters

    def pass_computer(self, decoder: Decoder) -> Any:
        """Return a `learn.pass_computer.PassComputer` of `decoder`; None: the plain passes. Called once for each trainer."""
        del decoder


def backend_for(device: torch.device | str) -> KernelBackend | None:
    """Return the enabled backend of a device; None without one.

    Raises `UsageError` for a registered backend that cannot be imported or is none, and for two of one device.
    """
    kind = torch.device(device).type
    enabled = {
        name: backend
        for name, backend in _registered().items()
        if backend.device == kind and backend.enabled
    }
    if len(enabled) > 1:
        raise UsageError(
            f"Several kernels are registered for {kind}: {', '.join(enabled)}. Uninstall all but one, or switch the others off."
        )
    return next(iter(enabled.values()), None)


@cache
def _registered() -> dict[str, KernelBackend]:
    return plugs.load_all(GROUP, KernelBackend)
