"""A GRPO step in one process on one device: 64 rollouts of 512 tokens, the share of each phase, and TRL's step beside it."""

from __future__ import annotations

import asyncio
import gc
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from qwen3 import random_decoder, release, synchronized
from records import report
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from hud.engine.config import DecoderConfig
from hud.engine.learn.local_trainer import LocalTrainer
from hud.engine.learn.optimizer_state import OptimizerOptions
from hud.engine.learn.options import TrainerOptions
from hud.engine.learn.step_meter import TRANSIENT
from hud.engine.memory.one_gpu import training_bytes
from hud.engine.models.reference_decoder import ReferenceDecoder
from hud.engine.pretrained import save_decoder
from hud.engine.sample.cache_budget import budget_of
from hud.engine.sample.request import SampledTurn
from hud.engine.sample.sampler import Sampler
from hud.learning.datums import Datum
from hud.trace import SamplingParams
from hud_platform.models.records import ModelConfig


@dataclass(frozen=True)
class Sizes:
    """What a step samples, and how it is computed."""

    groups: int = 8
    size: int = 8
    """Rollouts of each group."""
    prompt: int = 256
    new: int = 512
    """Sampled tokens of each rollout."""
    pass_tokens: int = 16_384
    """Tokens of one forward and backward pass."""
    recompute: bool = True
    """True: activations are computed again in the backward pass."""
    steps: int = 3
    """Measured steps, after a first one."""

    @property
    def rollouts(self) -> int:
        return self.groups * self.size


def grpo(name: str, config: DecoderConfig, device: torch.device, sizes: Sizes) -> list[bool]:
    """Report the median seconds of a step's phases and their shares."""
    medians = phases_of(random_decoder(config, device), device, sizes)
    whole = sum(medians.values())
    for phase, seconds in medians.items():
        report(f"{name}, GRPO step, {phase}", seconds, "s", ratio=seconds / whole)
    return [report(f"{name}, GRPO step of {sizes.rollouts} x {sizes.new} tokens", whole, "s")]


def against_trl(
    name: str,
    config: DecoderConfig,
    device: torch.device,
    sizes: Sizes,
    *,
    limit: float,
    vllm: bool = False,
) -> list[bool]:
    """Report a whole step and, as its ratio, TRL's time over it: the same weights, lengths and reward.

    TRL runs in a process of its own, for at most `limit` seconds, and generates with `transformers`, or with a colocated
    vLLM. It has bf16 weights and torch's AdamW.
    """
    packages = ["trl", "datasets", *(["vllm"] if vllm else [])]
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        print(f"  TRL is not installed here: pip install {' '.join(missing)}", flush=True)
        return []
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        decoder = random_decoder(config, device)
        save_decoder(decoder, folder)
        write_tokenizer(folder, config.vocab_size)
        ours = sum(phases_of(decoder, device, sizes).values())
        del decoder
        gc.collect()
        release(device)
        theirs = trl_seconds(folder, config, sizes, vllm=vllm, limit=limit)
    peer = f"TRL {version('trl')} with {'vLLM, colocated' if vllm else 'transformers'}"
    what = f"{name}, GRPO step of {sizes.rollouts} x {sizes.new} tokens"
    return [report(what, ours, "s", peer=peer, peer_value=theirs, ratio=theirs / ours)]


def trl_seconds(
    folder: Path, config: DecoderConfig, sizes: Sizes, *, vllm: bool, limit: float
) -> float:
    """Return the median seconds of TRL's steps after the first. Raises `SystemExit` where it fails or takes too long."""
    length = sizes.prompt + sizes.new
    # The most sequences of a pass that divide a step's, as many tokens as ours has at once.
    most = max(1, min(sizes.rollouts, sizes.pass_tokens // length))
    sequences = max(count for count in range(1, most + 1) if sizes.rollouts % count == 0)
    asked = asdict(sizes) | {
        "pass_sequences": sequences,
        "vocabulary": config.vocab_size,
        "vllm": vllm,
    }
    found = folder / "seconds.json"
    found.unlink(missing_ok=True)
    command = [sys.executable, str(Path(__file__).with_name("trl_step.py"))]
    try:
        done = subprocess.run(
            [*command, str(folder), json.dumps(asked), str(found)],
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SystemExit(f"  TRL was not finished after {limit:g} s.") from None
    if done.returncode:
        raise SystemExit(f"  TRL failed: {done.stderr.strip()[-2000:]}")
    return statistics.median(json.loads(found.read_text())[1:])


def write_tokenizer(folder: Path, size: int) -> None:
    """Write a tokenizer whose words are `t0`, `t1`, ..., each one token: prompts of exact lengths, without a chat's markup."""
    vocabulary = {f"t{number}": number for number in range(size)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="t0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    whole = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="t0", pad_token="t1", unk_token="t0"
    )
    whole.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    whole.save_pretrained(folder)


def phases_of(decoder: ReferenceDecoder, device: torch.device, sizes: Sizes) -> dict[str, float]:
    """Take the steps; return the median seconds of each phase.

    The reward of a rollout is the share of its tokens with an even id, so that every group has a spread.
    """
    sampler = Sampler(decoder, version="0")
    settings = ModelConfig(optimizer_states="8bit", recompute_layers=sizes.recompute)
    budget = budget_of(device)
    budget.reserve(sampler, training_bytes(decoder, settings.model_dump()))
    trainer = LocalTrainer(
        decoder,
        pass_tokens=sizes.pass_tokens,
        options=TrainerOptions(OptimizerOptions(states="8bit"), recompute_layers=sizes.recompute),
    )
    rng = np.random.default_rng(0)

    def rollouts() -> tuple[list[list[int]], list[SampledTurn]]:
        shape = (sizes.groups, sizes.prompt)
        shown = rng.integers(9, decoder.config.vocab_size, shape).tolist()
        prompts = [one for one in shown for _ in range(sizes.size)]
        params = SamplingParams(max_tokens=sizes.new)

        async def sample() -> list[SampledTurn]:
            turns = (sampler.sample(one, params, frozenset()) for one in prompts)
            return list(await asyncio.gather(*turns))

        return prompts, asyncio.run(sample())

    def swap(step: int) -> None:
        with sampler.exclusive():
            measured = trainer.optim_step(1e-6, max_grad_norm=1.0)
            if TRANSIENT in measured:
                budget.measured(sampler, int(measured[TRANSIENT]))
            sampler.set_version(str(step))

    times: list[dict[str, float]] = []
    for step in range(sizes.steps + 1):
        phases: dict[str, float] = {}

        def timed(phase: str, work: Callable[[], object]) -> object:
            started = synchronized(device)
            found = work()
            phases[phase] = synchronized(device) - started  # noqa: B023
            return found

        prompts, turns = timed("sampling", rollouts)
        batch = timed("datums", lambda: datums_of(prompts, turns, sizes.size))  # noqa: B023
        timed("gradient", lambda: trainer.forward_backward(batch, "ppo"))  # noqa: B023
        timed("optimizer step and swap", lambda: swap(step + 1))  # noqa: B023
        print(f"    step {step}: {sum(phases.values()):.2f} s", flush=True)
        times.append(phases)
    sampler.close()
    return {phase: statistics.median(one[phase] for one in times[1:]) for phase in times[0]}


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
