"""Sampling against `transformers`: its `generate` at batch 32, and its continuous batching, on the same 3.3M parameters.

128 prompts of 32 tokens, new ones each time, temperature 1: 64 new tokens each in fp32 and in bf16, and in fp32 a
number of new tokens that is spread from 16 to 256, where `generate` must run each batch to its longest and only the
tokens that were wanted count. Every side runs with one thread and with two, and its better setting counts.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import shapes
import torch
from measure import by_turns, highest
from records import report
from sampling_rates import generate, policy_rate
from sizes import size
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from hud.engine.cpu_threads import limit
from hud.engine.policy import Policy
from hud.engine.sample.options import SamplerOptions

PROMPT, BATCH, THREADS = size((32, 32, (1, 2)), (4, 2, (1,)))
NEW = {False: size((64, 64), (4, 4)), True: size((16, 256), (2, 6))}
"""New tokens of a row, from and to: always the same, or spread."""
BARS = {"fp32": (1.8, 5.0), "bf16": (2.8, 8.0), "fp32, spread": (3.0, None)}
"""At least so many times as fast as `generate`, and as continuous batching."""

Work = tuple[list[list[int]], list[int]]
"""Prompts, and how many tokens to draw after each."""


def batches(model: torch.nn.Module, work: Work) -> float:
    """Return tokens a second of `generate`, `BATCH` rows at a time, each batch to its longest."""
    prompts, lengths = work
    started = perf_counter()
    for first in range(0, len(prompts), BATCH):
        rows = slice(first, first + BATCH)
        generate(model, prompts[rows], max(lengths[rows]))
    return sum(lengths) / (perf_counter() - started)


def continuous(model: torch.nn.Module, work: Work) -> float:
    """Return tokens a second of `generate_batch`, all rows at once; all are as long."""
    settings = GenerationConfig(
        do_sample=True, max_new_tokens=work[1][0], eos_token_id=-1, pad_token_id=0
    )
    blocks = ContinuousBatchingConfig(num_blocks=2 * len(work[0]), max_batch_tokens=2048)
    started = perf_counter()
    found = model.generate_batch(
        work[0], generation_config=settings, continuous_batching_config=blocks
    )
    elapsed = perf_counter() - started
    drawn = [len(one.generated_tokens) for one in found.values()]
    assert drawn == work[1], f"{len(drawn)} rows, {sum(drawn)} tokens of {sum(work[1])}"
    return sum(drawn) / elapsed


def works(rows: int, new: tuple[int, int], size: int) -> Callable[[], Work]:
    """Return a maker of work: new prompts each time, so that nothing is found in a cache; lengths are always the same."""
    tokens = torch.Generator().manual_seed(0)
    lengths = [random.Random(row).randint(*new) for row in range(rows)]
    return lambda: (torch.randint(9, size, (rows, PROMPT), generator=tokens).tolist(), lengths)


def compare(folder: Path, case: str, rows: int, new: tuple[int, int], rounds: int) -> bool:
    """Measure one case and print it; return whether its bars are held."""
    dtype = torch.bfloat16 if case.startswith("bf16") else torch.float32
    policies = {}
    for count in THREADS:
        limit(sampling=count)  # It may sample with as many processes instead.
        policies[count] = Policy.load(folder, dtype=dtype, sampling=SamplerOptions(slots=rows))
        # Nothing ends a row before its length.
        policies[count].chat.stop_ids = frozenset()
        shapes.settle(policies[count])
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    work = works(rows, new, policies[1].decoder.config.vocab_size)
    peers = {"generate": batches}
    if BARS[case][1] is not None:
        peers["continuous batching"] = continuous

    def with_threads(name: str, count: int) -> Callable[[], float]:
        def measured() -> float:
            limit(sampling=count)
            torch.set_num_threads(count)
            if name == "ours":
                return policy_rate(policies[count], *work())
            return peers[name](model, work())

        return measured

    sides = ["ours", *peers]
    rates = by_turns(
        {(name, count): with_threads(name, count) for name in sides for count in THREADS},
        rounds,
    )
    for policy in policies.values():
        policy.close()
    best = {}
    for name in sides:
        threads, rate = highest({count: rates[name, count] for count in THREADS})
        best[name] = rate
        print(f"  {case}: {name:<20} {rate:8,.0f} tokens/s (threads {threads})", flush=True)
    held = [
        report(
            f"{case}, over {name}",
            best["ours"] / best[name],
            "times",
            bar=bar,
            ratio=best["ours"] / best[name],
        )
        for name, bar in zip(peers, BARS[case], strict=False)
    ]
    return all(held)


def main(cases: list[str], rounds: int, rows: int) -> int:
    """Print some cases; return 1 where a bar is missed."""
    set_verbosity_error()
    disable_progress_bar()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shapes.create_policy(folder, shapes.MIDDLE)
        held = [compare(folder, case, rows, NEW["spread" in case], rounds) for case in cases]
    return int(not all(held))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=size(5, 1))
    parser.add_argument("--rows", type=int, default=size(128, 2))
    parser.add_argument("--case", choices=BARS, action="append", help="only this one")
    given = parser.parse_args()
    sys.exit(main(given.case or list(BARS), given.rounds, given.rows))
