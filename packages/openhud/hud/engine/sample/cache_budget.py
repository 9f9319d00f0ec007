"""The share of a device's memory that the key-value caches of this process take.

On a GPU a cache takes `GPU_SHARE` of what weights and training leave, divided among the samplers of the process. Training is
reserved as planned until its first optimizer step, then as measured, and caches are resized. On a CPU a cache only reserves
addresses: its pages take memory when they are first written to, and beyond the first ones only while active sequences need
them and the machine has memory to spare. So samplers of several processes share it, too.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Protocol, TypeVar
from weakref import WeakKeyDictionary

import torch

from hud.engine.sample.memory_readings import DeviceMemory, memory_of

GPU_SHARE = 0.9
"""Part for keys and values of a GPU's memory after weights and training; the rest is for recorded graphs and fragmentation."""
PLANNED_LEAST = 2 << 30
"""Bytes that caches of a GPU take even where the plan of a training leaves less: the plan is an upper estimate."""
HOST_SHARE = 0.5
"""Most of the machine's free memory that one cache may grow to on a CPU."""
FIRST_BYTES = 2 << 30
FIRST_SHARE = 0.125
"""Of the machine's free memory: what a cache on a CPU fills with idle prefixes, at most `FIRST_BYTES`."""
SPARE_SHARE = 0.25
"""Of the machine's free memory: most that a cache on a CPU grows by at a time."""
RESIZED = 1.05
"""Least factor by which a cache is resized: its sequences are computed again, and decode steps recorded again."""

T = TypeVar("T")


class CacheHolder(Protocol):
    """A sampler with a cache that can be resized."""

    @property
    def cache_bytes(self) -> int:
        """Size of the present cache."""

    def resize(self, budget: int) -> None:
        """Replace the cache by one of at most `budget` bytes."""


class _Owner:
    """Key of a reservation."""


class CacheBudget:
    """The caches of one device in this process, and the memory that training will take there."""

    def __init__(self, memory: DeviceMemory) -> None:
        self.memory = memory
        self._wanted: WeakKeyDictionary[CacheHolder, int] = WeakKeyDictionary()
        """Largest useful cache of each holder."""
        self._training: WeakKeyDictionary[object, tuple[int, bool]] = WeakKeyDictionary()
        """Bytes that each training will take and has not taken yet, and True if they were measured."""
        self._lock = threading.RLock()

    @contextmanager
    def entering(self, holder: CacheHolder, wanted: int) -> Iterator[int]:
        """Yield the bytes for a new holder's cache, at most `wanted`, which the block allocates.

        Caches of other holders are made smaller for it where need be.
        """
        if self.memory.lazy:
            yield min(wanted, int(HOST_SHARE * self.memory.free()))
            return
        with self._lock:
            shares = self._shares({**self._wanted, holder: wanted}, without=holder)
            self._resize(shares, grow=False)
            yield shares[holder]
            self._wanted[holder] = wanted

    def leave(self, holder: CacheHolder) -> None:
        """Forget a holder whose cache is freed."""
        with self._lock:
            self._wanted.pop(holder, None)

    def reserve(self, training: object, planned: int) -> None:
        """Keep `planned` bytes free for a training that begins."""
        self._reserve(training, planned, measured=False)

    def measured(self, training: object, transient: int) -> None:
        """Keep the most that a step of a training was measured to take beyond what it holds between steps."""
        before, was_measured = self._training.get(training, (0, False))
        self._reserve(training, max(transient, before if was_measured else 0), measured=True)

    def _reserve(self, training: object, count: int, *, measured: bool) -> None:
        with self._lock:
            self._training[training] = count, measured
            if not self.memory.lazy:
                self._resize(self._shares(dict(self._wanted)), grow=True)

    @contextmanager
    def room_for(self, count: int) -> Iterator[None]:
        """Keep `count` bytes free inside the block, which takes them, such as for the weights of another model."""
        owner = _Owner()
        self._reserve(owner, count, measured=True)
        try:
            yield
        finally:
            with self._lock:
                del self._training[owner]

    def first(self, most: int) -> int:
        """Return how much of a cache of `most` bytes may be filled at once; `grows` decides about the rest."""
        if not self.memory.lazy:
            return most
        return min(most, FIRST_BYTES, int(FIRST_SHARE * self._spare()))

    def grows(self, count: int) -> bool:
        """Return whether a cache may take `count` more bytes for active sequences."""
        return count <= SPARE_SHARE * self._spare()

    def _spare(self) -> int:
        """Return the free bytes that training will not take."""
        with self._lock:
            reserved = sum(count for count, _ in self._training.values())
        return max(0, self.memory.free() - reserved)

    def _shares(
        self, wanted: Mapping[CacheHolder, int], *, without: CacheHolder | None = None
    ) -> dict[CacheHolder, int]:
        """Divide what there is for caches; `without` has none yet."""
        held = sum(holder.cache_bytes for holder in wanted if holder is not without)
        room = self.memory.free() + held
        plans = list(self._training.values())
        least = 0 if all(measured for _, measured in plans) else min(PLANNED_LEAST, room)
        room = max(room - sum(count for count, _ in plans), least)
        return divided(int(GPU_SHARE * room), wanted)

    def _resize(self, shares: Mapping[CacheHolder, int], *, grow: bool) -> None:
        """Make caches smaller, and then those larger that gain much by it."""
        changed = [
            holder
            for holder, share in shares.items()
            if holder in self._wanted
            and (
                share * RESIZED < holder.cache_bytes
                or (grow and share > RESIZED * holder.cache_bytes)
            )
        ]
        for holder in sorted(changed, key=lambda holder: shares[holder] - holder.cache_bytes):
            holder.resize(shares[holder])


def divided(room: int, wanted: Mapping[T, int]) -> dict[T, int]:
    """Return equal parts of `room`; what one does not want is divided among the others."""
    parts: dict[T, int] = {}
    for place, holder in enumerate(sorted(wanted, key=lambda holder: wanted[holder])):
        parts[holder] = min(wanted[holder], max(0, room) // (len(wanted) - place))
        room -= parts[holder]
    return parts


def budget_of(device: torch.device | str) -> CacheBudget:
    """Return the budget of a device's caches in this process."""
    named = torch.device(device)
    # "cuda" is the current one: the device of its tensors has a number.
    return _budget_of(torch.empty(0, device=named).device if named.type == "cuda" else named)


@cache
def _budget_of(device: torch.device) -> CacheBudget:
    return CacheBudget(memory_of(device))
