"""Seconds of a training pass over a tree of common beginnings, against passes without sharing.

Eight sequences at the leaves of a tree of depth 3: each of its 15 segments is continued by two others, as turns that runs
of one task branch off from. Beside it, in the same run and by turns:

- as many tokens without repetition: sequences as long as the tree's, whose tokens are all distinct;
- the unshared batch: the same eight sequences, each computed in full.

    python benchmarks/perf/common_beginnings.py [demo | middle]

Times are processor seconds of forward, PPO loss and backward, on one thread: a busy machine changes them little.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

import numpy as np
import torch
from measure import by_turns, processor_seconds
from records import report
from shapes import DEMO, MIDDLE, create_policy, datum
from sizes import size

from hud.engine.learn.local_trainer import LocalTrainer
from hud.engine.pretrained import load_decoder
from hud.learning.datums import Datum

DEPTH = 3
SEGMENT, ROUNDS = size((128, 9), (16, 1))
BAR = 1.15
"""Most time over that of as many tokens without repetition."""
SHAPES = {"demo": DEMO, "middle": MIDDLE}


def tree(rng: np.random.Generator, vocabulary: int, depth: int) -> list[np.ndarray]:
    """Return the tokens of each leaf, from the root on."""
    segment = rng.integers(9, vocabulary, SEGMENT)
    if depth == 0:
        return [segment]
    leaves = [leaf for _ in range(2) for leaf in tree(rng, vocabulary, depth - 1)]
    return [np.concatenate([segment, leaf]) for leaf in leaves]


def distinct(rng: np.random.Generator, vocabulary: int, total: int) -> list[np.ndarray]:
    """Return sequences of `total` tokens in all, no longer than the tree's."""
    longest = SEGMENT * (DEPTH + 1)
    lengths = [min(longest, total - start) for start in range(0, total, longest)]
    return [rng.integers(9, vocabulary, length) for length in lengths]


def datums(rng: np.random.Generator, sequences: list[np.ndarray], prompt: int) -> list[Datum]:
    """Return sequences of which all but the first `prompt` tokens were sampled."""
    return [
        datum(tokens, (np.arange(len(tokens)) >= prompt).astype(np.float32), number, rng)
        for number, tokens in enumerate(sequences)
    ]


def main(shape: str) -> int:
    """Print all three times and their ratios; fail over the bar."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        create_policy(Path(folder), SHAPES[shape])
        trainers = {
            name: LocalTrainer(load_decoder(Path(folder))) for name in ("tree", "distinct", "alone")
        }
    trainers["alone"].decoder.shares_prefixes = False
    vocabulary = trainers["tree"].decoder.config.vocab_size
    rng = np.random.default_rng(0)
    leaves = tree(rng, vocabulary, DEPTH)
    total = SEGMENT * (2 ** (DEPTH + 1) - 1)
    others = distinct(rng, vocabulary, total)
    batches = {
        "tree": datums(rng, leaves, SEGMENT),
        # As many tokens of prompts, and of actions.
        "distinct": datums(rng, others, SEGMENT // len(others)),
        "alone": datums(rng, leaves, SEGMENT),
    }

    def measured(name: str) -> float:
        started = processor_seconds()
        trainers[name].forward_backward(batches[name], "ppo")
        trainers[name].zero_grad()
        return processor_seconds() - started

    sides = {name: (lambda name=name: measured(name)) for name in trainers}
    times = {name: statistics.median(rounds) for name, rounds in by_turns(sides, ROUNDS).items()}
    held = report(
        f"a tree of depth {DEPTH} with eight leaves, shape {shape}, over as many distinct tokens",
        times["tree"] / times["distinct"],
        "times",
        bar=BAR,
        at_most=True,
    )
    report(
        f"a pass over a tree of depth {DEPTH} with eight leaves, shape {shape}",
        times["tree"],
        "CPU s",
        peer="the unshared batch",
        peer_value=times["alone"],
    )
    return 0 if held else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", nargs="?", choices=SHAPES, default="middle")
    raise SystemExit(main(parser.parse_args().shape))
