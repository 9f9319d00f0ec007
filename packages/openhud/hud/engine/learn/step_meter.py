"""Time, work and memory of a trainer's optimizer steps."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hud.engine.learn.flops import ceiling
from hud.engine.learn.ranks import Ranks

TRANSIENT = "transient_memory_bytes:max"
"""Metric of a GPU: the most that a step held beyond what it holds between steps."""


class Meter:
    """Counts from one optimizer step to the next."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device, self._dtype = device, dtype
        self.reset()

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count the time inside."""
        began = time.perf_counter()
        try:
            yield
        finally:
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            self._seconds += time.perf_counter() - began

    def add(self, tokens: int, flops: float) -> None:
        """Count tokens that a pass computed, and what they took; 0 if that is not known."""
        self._tokens += tokens
        self._flops += flops

    def read(self, ranks: Ranks) -> dict[str, float]:
        """Return the metrics of a step of all ranks, and begin the next one."""
        speed = ceiling(self._device, self._dtype)
        readings = ranks.gather(
            (self._tokens, self._flops, self._seconds, speed, self._memory(), self._transient())
        )
        self.reset()
        tokens, flops, seconds, speeds, memory, transient = zip(*readings, strict=True)
        # Ranks wait for one another, so the longest time is everyone's.
        longest = max(*seconds, 1e-9)
        metrics = {
            "trainer_seconds:sum": longest,
            "trainer_tokens_per_second:mean": sum(tokens) / longest,
            "peak_memory_bytes:max": max(memory),
        }
        if self._device.type == "cuda":
            metrics[TRANSIENT] = max(transient)
        if any(flops):
            metrics["flops:sum"] = sum(flops)
            metrics["model_flops_utilization:mean"] = sum(flops) / (longest * sum(speeds))
        return metrics

    def reset(self) -> None:
        """Forget what was counted."""
        self._seconds, self._tokens, self._flops = 0.0, 0, 0.0
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)

    def _transient(self) -> float:
        """Return the most bytes that a GPU held since the last step and holds no more; 0 for a CPU."""
        if self._device.type != "cuda":
            return 0.0
        held = torch.cuda.memory_allocated(self._device)
        return float(torch.cuda.max_memory_allocated(self._device) - held)

    def _memory(self) -> float:
        """Return the most bytes that the device held since the last step; of a CPU, that the process ever did."""
        if self._device.type == "cuda":
            return float(torch.cuda.max_memory_allocated(self._device))
        unit = 1 if sys.platform == "darwin" else 1024
        return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)
