"""A GRPO step of a real model's size on a CPU: all weights, and an adapter, against the rate of this CPU's matrix products.

The shape of SmolLM2-135M with random weights in the dtype that this CPU is fastest in: 16 runs in two groups, whose prompt of 200
tokens is computed once in a pass, and 52 sampled tokens each. A step is the gradient and Adam.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from measure import by_turns, seconds
from real_model import create
from records import report
from shapes import datum
from sizes import size

from hud.engine.learn.local_trainer import LocalTrainer
from hud.engine.lora import LoraConfig
from hud.engine.models.precision import computing_type
from hud.engine.pretrained import load_decoder
from hud.learning.datums import Datum

ROUNDS, PROMPT, NEW, GROUP = size((5, 200, 52, 8), (1, 8, 4, 2))
RANK = 16
LEAST_UTILIZATION = 0.3
"""Bar: share of the matrix rate that a step of all weights reaches."""
MOST_OF_AN_ADAPTER = 0.75
"""Bar: time of a step of an adapter over that of all weights."""


def runs(vocabulary: int) -> list[Datum]:
    """Return random runs of two groups."""
    rng = np.random.default_rng(0)
    datums = []
    for group in range(2):
        prompt = rng.integers(0, vocabulary, PROMPT)
        for _ in range(GROUP):
            mask = np.repeat(np.array([0, 1], np.float32), [PROMPT, NEW])
            tokens = np.concatenate([prompt, rng.integers(0, vocabulary, NEW)])
            logprob = -np.log(vocabulary)
            datums.append(datum(tokens, mask, len(datums), rng, logprob=logprob, group=group))
    return datums


def matrix_rate(dtype: torch.dtype) -> float:
    """Return operations a second of large products on all cores."""
    torch.set_num_threads(os.cpu_count() or 1)
    side = size(1024, 64)
    x, square = torch.ones(side, side, dtype=dtype), torch.ones(side, side, dtype=dtype)
    return 2 * side**3 / min(seconds(lambda: x @ square) for _ in range(9))


def main() -> None:
    """Measure by turns, and report against the bars."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        create(folder)
        dtype = computing_type(torch.bfloat16, "cpu")
        adapters = {"all weights": None, "adapter": LoraConfig(rank=RANK)}
        trainers = {
            name: LocalTrainer(load_decoder(folder, dtype=dtype), lora=lora)
            for name, lora in adapters.items()
        }
    datums = runs(trainers["adapter"].decoder.config.vocab_size)
    operations: dict[str, float] = {}

    def step(name: str) -> float:
        trainer = trainers[name]

        def whole() -> None:
            trainer.forward_backward(datums, "importance_sampling", {"token_mean": 1.0})
            operations[name] = trainer.optim_step(1e-5)["flops:sum"]

        return seconds(whole)

    sides: dict[str, Callable[[], float]] = {
        "all weights": lambda: step("all weights"),
        "adapter": lambda: step("adapter"),
        "rate": lambda: matrix_rate(dtype),
    }
    measured = {side: statistics.median(each) for side, each in by_turns(sides, ROUNDS).items()}
    kind = str(dtype).removeprefix("torch.")
    for name in trainers:
        report(
            f"a step, {name}, {kind}",
            operations[name] / measured[name] / 1e9,
            "Gflop/s",
            peer="matrix rate",
            peer_value=measured["rate"] / 1e9,
            bar=LEAST_UTILIZATION * measured["rate"] / 1e9 if name == "all weights" else None,
        )
    report(
        f"a step of an adapter of rank {RANK}, {kind}",
        measured["adapter"],
        "s",
        peer="all weights",
        peer_value=measured["all weights"],
        bar=MOST_OF_AN_ADAPTER * measured["all weights"],
        at_most=True,
    )


if __name__ == "__main__":
    main()
