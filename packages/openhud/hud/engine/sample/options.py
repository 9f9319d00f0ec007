"""Memory options of a sampler; what is absent follows from the device's memory."""

from __future__ import annotations

from dataclasses import dataclass, fields

MOST_SLOTS = {"cpu": 64, "cuda": 256}
"""Most active sequences by type of device, without `SamplerOptions.slots`."""
SLOT_LIMIT = 4096
"""Largest `SamplerOptions.slots`: a GPU records a decode step for every sixteen."""
LEAST_SLOTS = 8
SLOT_TOKENS = 512
"""Tokens of the cache for each slot: with less, active sequences would preempt each other."""


@dataclass(frozen=True)
class SamplerOptions:
    """Limits of a sampler and its key-value cache."""

    slots: int | None = None
    """Most active sequences; None: as many as the cache has room for; see `slots_within`."""
    max_context: int | None = None
    """Most tokens of one sequence; None: the model's context, as far as the cache holds it."""
    cache_bytes: int | None = None
    """Size of the key-value cache; None: what weights and training leave of the device's memory (`CacheBudget`)."""


OPTIONS = frozenset(field.name for field in fields(SamplerOptions))
"""Names of a sampler's options, which are also settings of a model."""
BESIDE_TRAINING = OPTIONS | {"tool_call_parser", "reward_model"}
"""Settings of a model that leave how it is trained unchanged."""
BY_MEMORY = SamplerOptions()
"""Every limit follows from the device's memory."""


@dataclass(frozen=True)
class CacheFacts:
    """Size of a sampler's key-value cache, and what it holds."""

    nbytes: int
    """On a CPU, the most that it may grow to."""
    tokens: int
    """Tokens of all sequences together."""
    slots: int
    """Most active sequences."""
    max_context: int
    """Most tokens of one sequence."""

    def __str__(self) -> str:
        return (
            f"{self.nbytes / 2**30:,.2f} GiB for {self.tokens:,} tokens, {self.slots} sequences at a time, "
            f"{self.max_context:,} tokens each at most"
        )


def most_slots(device: str) -> int:
    """Return the most active sequences on a type of device."""
    return MOST_SLOTS.get(device, MOST_SLOTS["cpu"])


def slots_within(tokens: int, device: str) -> int:
    """Return how many sequences may be active over a cache of so many tokens."""
    return min(most_slots(device), max(LEAST_SLOTS, tokens // SLOT_TOKENS))
