"""Preemption of spot machines: times at which it comes, and the expected time that it costs.

A machine is preempted at a constant rate, λ an hour, whatever its age: a Poisson process. One that is lost is back, as another
machine, after `away` seconds.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from hud.errors import UsageError

HOUR = 3600.0
LARGEST_EXPONENT = 700.0
"""Above it exp overflows a double: nothing ever ends."""


@dataclass(frozen=True)
class Preemption:
    """Rates of preemption, and what follows it, in seconds."""

    nodes_per_hour: float = 0.0
    """Preemptions of one node of environments an hour."""
    samplers_per_hour: float = 0.0
    """Preemptions of one sampler an hour."""
    node_away: float = 180.0
    """From the loss of a node until the next one plays."""
    sampler_away: float = 180.0
    """From the loss of a sampler until the next one samples: a machine, its engine, the weights."""
    lease: float = 29.0
    """From the loss of a node until its rollouts wait again: leases last 30 s, and were renewed 0 to 2 s before."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 <= value < math.inf:
                raise UsageError(f"{name} must be a finite number of at least 0, not {value}.")


def moments(per_hour: float, *place: object) -> Iterator[float]:
    """Yield the times of one machine's preemptions, in seconds from 0; endless, none at a rate of 0.

    Intervals of a Poisson process are exponential with mean 1/λ. `place` seeds them.
    """
    if per_hour <= 0:
        return
    chance = random.Random("\x1f".join(map(str, place)))
    now = 0.0
    while True:
        now += chance.expovariate(per_hour / HOUR)
        yield now


def time_away(per_hour: float, away: float) -> float:
    """Return the share of time in which a machine is missing: λR / (1 + λR).

    An alternating renewal process is up for 1/λ and down for R on average, so it is down for R / (1/λ + R) of the time.
    """
    expected = per_hour / HOUR * away
    return expected / (1 + expected)


def work_repeated(per_hour: float, seconds: float) -> float:
    """Return the share of time lost to work that begins anew: 1 - λL / (exp(λL) - 1).

    Work of L seconds that starts again whenever it is interrupted takes (exp(λL) - 1) / λ on average: the expectation E solves
    E = ∫₀ᴸ λ exp(-λt) (t + E) dt + exp(-λL) L (Daly, "A higher order estimate of the optimum checkpoint interval", 2006,
    without checkpoints).
    """
    expected = per_hour / HOUR * seconds
    if expected > LARGEST_EXPONENT:
        return 1.0
    return 1 - expected / math.expm1(expected) if expected > 0 else 0.0


def environments_lost(per_hour: float, away: float, seconds: float) -> float:
    """Return the share of the environments' time that preemption of their nodes costs, with rollouts of `seconds`.

    A node is missing for `time_away`; of what is left, rollouts that are lost and played again take `work_repeated`.
    """
    return 1 - (1 - time_away(per_hour, away)) * (1 - work_repeated(per_hour, seconds))


def samplers_lost(per_hour: float, away: float, prefill: float) -> float:
    """Return the share of the samplers' time that preemption costs.

    No sampled token is lost: turns continue on another sampler from their tokens, whose keys and values it computes anew in
    `prefill` seconds. A sampler's machine is missing for `time_away`, and λ · prefill of what is left goes into that.
    """
    again = per_hour / HOUR * prefill
    return 1 - (1 - time_away(per_hour, away)) / (1 + again)


def trainer_lost(per_hour: float, away: float, checkpoint: float, interval: float) -> float:
    """Return the share of its time that a preempted trainer loses, with a checkpoint after every `interval` seconds of work.

    τ seconds of work and δ of writing begin anew after each preemption and a restart of R seconds, which may be preempted too:
    they take (exp(λR) / λ) (exp(λ(τ + δ)) - 1) on average (Daly 2006, as in `work_repeated`), of which τ are not lost.
    """
    rate = per_hour / HOUR
    if rate == 0:
        return checkpoint / (interval + checkpoint)
    if rate * (away + interval + checkpoint) > LARGEST_EXPONENT:
        return 1.0
    taken = math.exp(rate * away) * (math.expm1(rate * (interval + checkpoint)) / rate)
    return 1 - interval / taken
