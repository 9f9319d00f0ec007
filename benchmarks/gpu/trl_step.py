"""TRL's GRPO steps on a model folder, for a process of their own: `grpo.against_trl` starts it and reads the seconds.

    python benchmarks/gpu/trl_step.py FOLDER '{"groups": 8, "size": 8, "prompt": 256, "new": 512, ...}' SECONDS.json

The folder needs a tokenizer of which every word is one token; see `write_tokenizer`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import perf_counter

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "perf"))

import trl_peer
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOTrainer


class Clock(TrainerCallback):
    """Measures whole steps: sampling, rewards, gradient and optimizer."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_step_begin(self, args, state, control, **_) -> None:
        self._started = synchronized()

    def on_step_end(self, args, state, control, **_) -> None:
        self.seconds.append(synchronized() - self._started)


def synchronized() -> float:
    """Return the time, once the device has done what it was asked for."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return perf_counter()


def even_share(completion_ids: list[list[int]], **_: object) -> list[float]:
    """Return the share of each completion's tokens with an even id: the reward of our side."""
    return [sum(token % 2 == 0 for token in ids) / len(ids) for ids in completion_ids]


def main(folder: Path, sizes: dict, found: Path) -> None:
    """Take one step more than `sizes["steps"]`, and write the seconds of all to `found` as JSON."""
    trl_peer.quiet()
    clock = Clock()
    count, on_gpu = sizes["groups"] * sizes["size"], torch.cuda.is_available()
    settings: dict[str, object] = {
        "use_cpu": not on_gpu,
        "bf16": on_gpu,
        "num_generations": sizes["size"],
        "per_device_train_batch_size": sizes["pass_sequences"],
        "gradient_accumulation_steps": count // sizes["pass_sequences"],
        "gradient_checkpointing": sizes["recompute"],
        "max_completion_length": sizes["new"],
        "max_steps": sizes["steps"] + 1,
        "generation_kwargs": {"min_new_tokens": sizes["new"]},
    }
    if sizes["vllm"]:
        settings |= {
            "use_vllm": True,
            "vllm_mode": "colocate",
            "vllm_max_model_length": sizes["prompt"] + sizes["new"],
            "generation_kwargs": {"ignore_eos": True},
        }
    rng = torch.Generator().manual_seed(0)
    shape = (sizes["groups"] * (sizes["steps"] + 1), sizes["prompt"])
    rows = torch.randint(9, sizes["vocabulary"], shape, generator=rng).tolist()
    prompts = [" ".join(f"t{token}" for token in row) for row in rows]
    dtype = torch.bfloat16 if on_gpu else torch.float32
    trl = GRPOTrainer(
        **trl_peer.trl_arguments(folder, prompts, dtype=dtype, reward=even_share, **settings),
        callbacks=[clock],
    )
    trl.remove_callback(PrinterCallback)
    trl.train()
    found.write_text(json.dumps(clock.seconds))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]), Path(sys.argv[3]))
