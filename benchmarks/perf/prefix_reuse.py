"""How much of a prompt is computed again: a conversation of 20 turns, and a group of 16 on one prompt. Counted, not timed.

A turn's new tokens are those that its prompt adds to what was said before (the turn before's prompt and output).
Prefill is counted twice: as the sampler tells it (prompt tokens that were not `cached_tokens`), and as the positions
that the decoder computed, less one for each token that a decode step drew. The higher of both counts.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

import shapes
import torch
from records import report

from hud.engine.policy import Policy
from hud.engine.sample.options import SamplerOptions
from hud.trace import SamplingParams
from hud_kernels.cpu.fused_decoder import FusedDecoder

TURNS, SAID, DRAWN = 20, 40, 30
GROUP, PROMPT = 16, 2000


class Counter:
    """Counts the positions that the policy's decoder computes."""

    def __init__(self) -> None:
        self.positions = 0
        run, draw_on = FusedDecoder.run, FusedDecoder.draw_on

        def counted_run(fused: FusedDecoder, ids: Any, *rest: Any) -> torch.Tensor:
            self.positions += sum(map(len, ids))
            return run(fused, ids, *rest)

        def counted_draws(fused: FusedDecoder, *given: Any, **options: Any) -> Any:
            found = draw_on(fused, *given, **options)
            self.positions += int(
                found[2].sum()
            )  # Each token is drawn after the one before it was computed.
            return found

        FusedDecoder.run, FusedDecoder.draw_on = counted_run, counted_draws

    def taken(self) -> int:
        """Return the positions since the last call."""
        found, self.positions = self.positions, 0
        return found


async def conversation(policy: Policy, counter: Counter) -> float:
    """Return prefill tokens over new tokens of a whole conversation."""
    generator = torch.Generator().manual_seed(1)
    size = policy.decoder.config.vocab_size
    said: list[int] = []
    new = told = decoded = 0
    for _ in range(TURNS):
        added = torch.randint(9, size, (SAID,), generator=generator).tolist()
        prompt = said + added
        drawn = await policy.sample(prompt, SamplingParams(max_tokens=DRAWN))
        new += len(added)
        told += len(prompt) - drawn.cached_tokens
        decoded += len(drawn.token_ids) - 1
        said = prompt + drawn.token_ids
    counted = counter.taken() - decoded
    print(f"  {TURNS} turns: {new} new tokens; prefill {told} as told, {counted} as counted")
    return max(told, counted) / new


async def group(policy: Policy, counter: Counter) -> float:
    """Return the prefill of a group on one prompt over that of one."""
    generator = torch.Generator().manual_seed(2)
    size = policy.decoder.config.vocab_size
    work = []
    for count in (1, GROUP):
        prompt = torch.randint(9, size, (PROMPT,), generator=generator).tolist()
        params = SamplingParams(max_tokens=1)  # The first token comes from the prefill.
        drawn = await asyncio.gather(*(policy.sample(prompt, params) for _ in range(count)))
        told = sum(PROMPT - one.cached_tokens for one in drawn)
        counted = counter.taken()
        print(f"  group of {count}: prefill {told} as told, {counted} as counted")
        work.append(max(told, counted))
    return work[1] / work[0]


async def main() -> int:
    """Print both ratios; return 1 where a bar is missed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shapes.create_policy(folder, shapes.MIDDLE, max_context=2 * PROMPT)
        policy = Policy.load(folder, sampling=SamplerOptions(slots=GROUP))
        policy.chat.stop_ids = frozenset()
        counter = Counter()
        turns, members = await conversation(policy, counter), await group(policy, counter)
        policy.close()
    held = [
        report("conversation, prefill over new tokens", turns, "times", bar=1.05, at_most=True),
        report(
            f"group of {GROUP}, prefill over that of one", members, "times", bar=1.1, at_most=True
        ),
    ]
    return int(not all(held))


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
