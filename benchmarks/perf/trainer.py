"""Tokens a second of a whole training step: forward, PPO loss, backward, AdamW.

64 trajectories in 8 groups, about 400 tokens each, in fp32, on the shape of the demo's policy or on a larger one:

    python benchmarks/perf/trainer.py [demo | middle]

Bar: about a second a step of the demo's on two quiet cores. Beside it, in the same run and by turns, `transformers`
does the same on the same weights the usual way: batches padded to their longest, logits at every position.

Weights are those that a new policy gets. With larger ones what was sampled is so unlikely that most gradients are
denormal numbers, which a processor computes with several times slower: nothing real would be measured.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from records import report
from shapes import DEMO, MIDDLE, create_policy, datum
from sizes import size
from transformers import AutoModelForCausalLM

from hud.engine.learn.local_trainer import LocalTrainer
from hud.engine.pretrained import load_decoder
from hud.learning.datums import Datum

BAR_SECONDS = 1.5
ROUNDS, GROUPS = size((5, 8), (1, 1))
PADDED_ROWS = 8
SHAPES = {"demo": DEMO, "middle": MIDDLE}


def trajectories(rng: np.random.Generator, vocabulary: int) -> list[Datum]:
    """Return runs of three turns: a prompt of about 150 tokens that the group shares, then actions and results."""
    datums = []
    for group in range(GROUPS):
        prompt = rng.integers(0, vocabulary, int(rng.integers(130, 170)))
        for _ in range(8):
            pieces, mask = [prompt], [np.zeros(len(prompt))]
            for turn in range(3):
                drawn = int(rng.integers(30, 60))
                pieces.append(rng.integers(0, vocabulary, drawn))
                mask.append(np.ones(drawn))
                shown = int(rng.integers(40, 80)) if turn < 2 else 0
                pieces.append(rng.integers(0, vocabulary, shown))
                mask.append(np.zeros(shown))
            kept = np.concatenate(mask).astype(np.float32)
            tokens, logprob = np.concatenate(pieces), -np.log(vocabulary)
            datums.append(datum(tokens, kept, len(datums), rng, logprob=logprob, group=group))
    return datums


def padded_step(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, datums: list[Datum]
) -> None:
    """The same step, padded: what a training script written on transformers does."""
    order = sorted(datums, key=lambda datum: datum.length)
    for start in range(0, len(order), PADDED_ROWS):
        rows = order[start : start + PADDED_ROWS]
        longest = max(row.length for row in rows)
        stacked = {
            name: torch.stack(
                [
                    F.pad(torch.from_numpy(getattr(row, name)), (0, longest - row.length))
                    for row in rows
                ]
            )
            for name in ("tokens", "mask", "logprobs", "advantages")
        }
        attended = torch.stack([torch.arange(longest) < row.length for row in rows]).long()
        logits = model(input_ids=stacked["tokens"], attention_mask=attended).logits[:, :-1].float()
        logprobs = logits.log_softmax(-1).gather(-1, stacked["tokens"][:, 1:, None]).squeeze(-1)
        ratio = (logprobs - stacked["logprobs"][:, 1:]).clamp(-20, 20).exp()
        advantages = stacked["advantages"][:, 1:]
        gained = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        (-(gained * stacked["mask"][:, 1:]).sum()).backward()
    optimizer.step()
    optimizer.zero_grad()


def seconds(step) -> float:
    """Return how long a call takes."""
    started = time.perf_counter()
    step()
    return time.perf_counter() - started


def main() -> int:
    """Print both rates and their ratio; fail over the bar."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)))
    shape = sys.argv[1] if len(sys.argv) > 1 else "demo"
    with tempfile.TemporaryDirectory() as folder:
        create_policy(Path(folder), SHAPES[shape])
        decoder = load_decoder(Path(folder))
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    datums = trajectories(np.random.default_rng(0), decoder.config.vocab_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    trainer = LocalTrainer(decoder)
    tokens = sum(datum.length for datum in datums)
    parameters = sum(parameter.numel() for parameter in decoder.parameters())
    print(
        f"{len(datums)} trajectories, {tokens:,} tokens, {parameters:,} parameters, "
        f"{torch.get_num_threads()} threads"
    )

    def ours() -> None:
        trainer.forward_backward(datums, "ppo")
        trainer.optim_step(1e-5)

    def theirs() -> None:
        padded_step(model, optimizer, datums)

    ours()
    theirs()
    # By turns, so that a busy machine slows both.
    pairs = [(seconds(ours), seconds(theirs)) for _ in range(ROUNDS)]
    mine, plain = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratio = statistics.median(plain / own for own, plain in pairs)
    held = report(
        f"a training step, shape {shape}",
        mine,
        "s",
        bar=BAR_SECONDS if shape == "demo" else None,
        at_most=True,
        peer="transformers, padded",
        peer_value=plain,
        ratio=ratio,
    )
    report(f"tokens of it, shape {shape}", tokens / mine, "/s")
    return int(not held)


if __name__ == "__main__":
    sys.exit(main())
