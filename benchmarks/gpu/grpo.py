"""A GRPO step in one process on one device: 64 rollouts of 512 tokens, and the share of each phase."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable

import numpy as np
import torch
from qwen3 import random_decoder, synchronized
from records import report

from hud.engine.config import DecoderConfig
from hud.engine.learn.optimizer_state import OptimizerOptions
from hud.engine.learn.options import TrainerOptions
from hud.engine.learn.trainer import Trainer
from hud.engine.sample.request import SampledTurn
from hud.engine.sample.sampler import Sampler
from hud.learning.datums import Datum
from hud.trace import SamplingParams


def grpo(
    name: str,
    config: DecoderConfig,
    device: torch.device,
    *,
    groups: int = 8,
    size: int = 8,
    prompt: int = 256,
    new: int = 512,
    pass_tokens: int = 16_384,
    steps: int = 3,
) -> list[bool]:
    """Take `steps` steps after a first one; report the median seconds of each phase and their shares.

    The reward of a rollout is the share of its tokens with an even id, so that every group has a spread.
    """
    decoder = random_decoder(config, device)
    count = groups * size
    sampler = Sampler(decoder, slots=count, max_context=prompt + new, version="0")
    trainer = Trainer(
        decoder,
        pass_tokens=pass_tokens,
        options=TrainerOptions(OptimizerOptions(states="8bit"), recompute_layers=True),
    )
    rng = np.random.default_rng(0)

    def rollouts() -> tuple[list[list[int]], list[SampledTurn]]:
        shown = rng.integers(9, config.vocab_size, (groups, prompt)).tolist()
        prompts = [one for one in shown for _ in range(size)]
        params = SamplingParams(max_tokens=new)

        async def sample() -> list[SampledTurn]:
            turns = (sampler.sample(one, params, frozenset()) for one in prompts)
            return list(await asyncio.gather(*turns))

        return prompts, asyncio.run(sample())

    def swap(step: int) -> None:
        with sampler.exclusive():
            trainer.optim_step(1e-6, max_grad_norm=1.0)
            sampler.set_version(str(step))

    times: list[dict[str, float]] = []
    for step in range(steps + 1):
        phases: dict[str, float] = {}

        def timed(phase: str, work: Callable[[], object]) -> object:
            started = synchronized(device)
            found = work()
            phases[phase] = synchronized(device) - started  # noqa: B023
            return found

        prompts, turns = timed("sampling", rollouts)
        batch = timed("datums", lambda: datums_of(prompts, turns, size))  # noqa: B023
        timed("gradient", lambda: trainer.forward_backward(batch, "ppo"))  # noqa: B023
        timed("optimizer step and swap", lambda: swap(step + 1))  # noqa: B023
        print(f"    step {step}: {sum(phases.values()):.2f} s", flush=True)
        times.append(phases)
    sampler.close()
    medians = {phase: statistics.median(one[phase] for one in times[1:]) for phase in times[0]}
    whole = sum(medians.values())
    for phase, seconds in medians.items():
        report(f"{name}, GRPO step, {phase}", seconds, "s", ratio=seconds / whole)
    return [report(f"{name}, GRPO step of {count} x {new} tokens", whole, "s")]


def datums_of(prompts: list[list[int]], turns: list[SampledTurn], size: int) -> list[Datum]:
    """Return a datum for each rollout; its advantage is the reward minus the group's mean."""
    rewards = np.asarray([np.mean(np.asarray(turn.token_ids) % 2 == 0) for turn in turns])
    groups = rewards.reshape(-1, size)
    advantages = (groups - groups.mean(1, keepdims=True)).flatten()
    found = []
    for number, (shown, turn, advantage) in enumerate(zip(prompts, turns, advantages, strict=True)):
        mask = np.repeat(np.float32([0, 1]), [len(shown), len(turn.token_ids)])
        found.append(
            Datum(
                tokens=np.asarray([*shown, *turn.token_ids]),
                mask=mask,
                logprobs=np.float32([*[0.0] * len(shown), *turn.logprobs]),
                advantages=mask * np.float32(advantage),
                weights=mask,
                temperatures=np.ones_like(mask),
                traj_idx=number,
                group_idx=number // size,
            )
        )
    return found
