"""Processor time of the host for a decode step, the device's work aside, by number of sequences.

A stand-in sleeps in place of the device's work: what is left is the sampler's thread between two launches. Its processor
time counts, so that a busy machine changes little. `host_training.py` measures the same through `hud train`.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from pathlib import Path

import shapes
from records import report
from sizes import size
from sleeping_device import SleepingGraphs, SleepingRunner

from hud.engine.policy import Policy
from hud.engine.sample.options import SamplerOptions
from hud.engine.sample.request import Turn
from hud.engine.sample.sampler import Sampler
from hud.trace import SamplingParams

SEQUENCES, TOKENS = size(((1, 8, 64, 256, 512), 512), ((1, 4), 40))
PROMPT = 64
LIMIT_AT = 256
LIMIT_MS = 1.0


class TimedSampler(Sampler):
    """A sampler that adds up the processor time of its decode steps."""

    seconds = 0.0

    def _decode(self) -> None:
        account = SleepingGraphs.account
        begun, device = time.thread_time(), account.seconds
        super()._decode()
        self.seconds += time.thread_time() - begun - (account.seconds - device)


def step_seconds(policy: Policy, count: int) -> float:
    """Return the processor time of the sampler's thread for a decode step of `count` sequences, in seconds."""
    import hud.engine.sample.sampler as module

    module.runner_type = lambda decoder, bank: SleepingRunner
    sampler = TimedSampler(policy.decoder, slots=count)
    steps = SleepingGraphs.account.steps
    done = threading.Semaphore(0)
    params = SamplingParams(max_tokens=TOKENS)
    for number in range(count):
        prompt = [number % 50 + 1] * PROMPT
        turn = Turn(prompt=prompt, params=params, stop_ids=frozenset({0}))
        sampler.submit(turn, done.release)
    for _ in range(count):
        done.acquire()
    sampler.close()
    return sampler.seconds / (SleepingGraphs.account.steps - steps)


def main() -> int:
    """Print the time of a step at each number of sequences; return 1 where the limit is exceeded."""
    held = True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shapes.create_policy(folder, shapes.MIDDLE, max_context=1024)
        policy = Policy.load(folder, sampling=SamplerOptions(slots=8))
        for count in SEQUENCES:
            seconds = step_seconds(policy, count)
            bar = LIMIT_MS if count == LIMIT_AT else None
            print(f"  {count} sequences: {seconds / count * 1e6:.2f} µs a sequence")
            held &= report(
                f"host, a decode step of {count} sequences",
                seconds * 1000,
                "ms",
                bar=bar,
                at_most=True,
            )
        policy.close()
    return int(not held)


if __name__ == "__main__":
    sys.exit(main())
