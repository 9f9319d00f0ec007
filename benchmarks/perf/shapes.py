"""The policies that the benchmarks measure, as folders that both sides load."""

from __future__ import annotations

import asyncio
from itertools import product
from pathlib import Path
from time import perf_counter

import numpy as np

from hud.engine.policy import Policy
from hud.engine.tiny_model import create_tiny
from hud.learning.datums import Datum
from hud.trace import SamplingParams

ROLES = ("api", "db", "cache", "queue", "search", "mailer", "ledger", "proxy")
PLACES = ("oslo", "lima", "kyoto", "cairo", "quito", "perth", "turin", "dakar")
SIGNS = ("answers late", "drops requests", "fills its disk", "restarts every hour")
SYLLABLES = ("ka", "lo", "mi", "ren", "tu", "sol", "vi", "dar", "pe", "gun", "fa", "tis")

DEMO = {"vocab_size": 1024, "hidden": 128, "layers": 3}
"""The shape of the policy that `make demo-tiny` trains."""
MIDDLE = {"vocab_size": 600, "hidden": 256, "layers": 4}
"""3.3 million parameters, the shape of the comparisons with TRL and transformers."""


def incidents() -> list[str]:
    """Return sentences of like length, for prompts."""
    return [
        f"The {role}-{place}-{number} {sign} since {7 * number + 3} minutes, and its neighbour in {other} does not."
        for (role, place, sign), number, other in (
            (words, index % 9, PLACES[(index * 5 + 3) % len(PLACES)])
            for index, words in enumerate(product(ROLES, PLACES, SIGNS))
        )
    ]


def words() -> list[str]:
    """Return made-up words, enough of them for a tokenizer of any size here."""
    return ["".join(parts) for parts in product(SYLLABLES, repeat=3)]


def create_policy(folder: Path, sizes: dict[str, int], *, max_context: int = 1024) -> None:
    """Write a Qwen3-shaped folder with random weights; the same sizes give the same files."""
    create_tiny(folder, incidents() + words(), **sizes, max_context=max_context)


def settle(policy: Policy, *, limit: float = 300.0) -> None:
    """Sample until the policy does so as it will go on: small ones begin other processes after some hundred steps."""
    samplers = policy._samplers
    ends = perf_counter() + limit

    async def turns(row: int) -> None:
        for _ in range(4):  # Of unlike lengths, so that turns come while others are on their way.
            await policy.sample([9 + row] * 16, SamplingParams(max_tokens=30 + 5 * row))

    async def some() -> None:
        await asyncio.gather(*map(turns, range(24)))

    while sum(side.ready.is_set() for side in samplers._sides) < samplers._wanted:
        if perf_counter() > ends:
            raise SystemExit(f"The policy's other processes had not begun after {limit:.0f} s.")
        asyncio.run(some())


def datum(
    tokens: np.ndarray,
    mask: np.ndarray,
    number: int,
    rng: np.random.Generator,
    *,
    logprob: float = -6,
    group: int = 0,
) -> Datum:
    """Return a sequence of which the tokens of `mask` were sampled, each with one logprob, and a random advantage."""
    return Datum(
        tokens=tokens,
        mask=mask,
        logprobs=mask * np.float32(logprob),
        advantages=mask * np.float32(rng.normal()),
        weights=mask,
        temperatures=np.ones_like(mask),
        traj_idx=number,
        group_idx=group,
    )


def datums(vocabulary: int, sequences: int, length: int) -> list[Datum]:
    """Return sequences of random tokens without a common beginning, whose second half was sampled."""
    mask = np.repeat(np.float32([0, 1]), length // 2)
    rng = np.random.default_rng(0)
    return [
        datum(rng.integers(9, vocabulary, length), mask, number, rng) for number in range(sequences)
    ]
