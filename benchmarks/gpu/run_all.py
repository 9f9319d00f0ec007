"""Every figure that needs a GPU, each part in a process of its own; `--tiny` runs all of it on a CPU, on tiny shapes.

    python benchmarks/gpu/run_all.py
    python benchmarks/gpu/run_all.py --only decode --only swap

Random weights in the shapes of Qwen3-0.6B, 4B and 8B, bf16:

- `decode`: 256 sequences, 512 tokens in and 512 out: tokens a second over what memory bandwidth allows (weights once
  a step and every sequence's keys and values once, over the measured bandwidth); prompts that arrive meanwhile; and the
  continuous batching of `transformers` on the same weights, whole runs compared, its warm-up left out;
- `train`: 65,536 packed tokens in sequences of 1,024, or spread around it, half of them sampled, forward and backward
  with full weights and with LoRA: the operations that the mathematics asks for, over those of a measured matrix product;
- `swap`: new weights under a sampler that is drawing from them;
- `grpo`: a whole GRPO step of 64 x 512 tokens, phase by phase; and against TRL's, where it is installed, on the same
  weights, in a process of its own;
- `parity`: the sampler's logprobs against the trainer's.

Figures are printed and recorded (`benchmarks/perf/records.py`) as they are measured. A part that fails, out of memory,
say, or that is not finished after `--limit` seconds, is named, and the others run.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parents[1] / "perf"))

KINDS = ("decode", "train", "swap", "grpo", "parity")
LIMIT = 180.0
"""Seconds that one part may take."""
MISSED = 3
"""Exit status of a part that missed a bar."""
TRL = "grpo.against_trl"
TRAINING, PEER = "training.training", "continuous_batching.against_transformers"

Part = Callable[[], list[bool]]


def part(script: str, *arguments: object, **sizes: object) -> Part:
    """Return a part: a call of `script.function`, whose imports wait until it is called."""
    module, _, function = script.partition(".")
    return lambda: getattr(import_module(module), function)(*arguments, **sizes)


def parts() -> dict[str, Part]:
    """Return the parts by name, `KIND: what`, the most telling first."""
    import torch
    from decoding import Load
    from grpo import Sizes
    from qwen3 import LARGE, LARGEST, SMALL

    device = torch.device("cuda")
    compared = ("0.6B", SMALL, device, Sizes(steps=2))
    found = {
        "decode: 0.6B": part("decoding.decoding", "0.6B", SMALL, Load(), device),
        "train: 4B, full, equal": part(TRAINING, "4B", "full", "equal", LARGE, device),
        "train: 4B, LoRA, equal": part(TRAINING, "4B", "LoRA", "equal", LARGE, device),
        "swap: 4B": part("swapping.swapping", "4B", LARGE, device),
        "grpo: 0.6B": part("grpo.grpo", "0.6B", SMALL, device, Sizes()),
        "parity: 0.6B": part("parity.parity", "0.6B", SMALL, device),
        "decode: 4B": part("decoding.decoding", "4B", LARGE, Load(rounds=1), device),
        "decode: 0.6B, mixed steps": part("mixing.mixing", "0.6B", SMALL, device),
        "grpo: 0.6B against TRL": part(TRL, *compared, limit=120),
        "grpo: 0.6B against TRL with vLLM": part(TRL, *compared, limit=120, vllm=True),
    }
    for name, shape in {"0.6B": SMALL, "4B": LARGE, "8B": LARGEST}.items():
        for kind in ("full", "LoRA"):
            for lengths in ("equal", "spread"):
                one = part(TRAINING, name, kind, lengths, shape, device)
                found.setdefault(f"train: {name}, {kind}, {lengths}", one)
    short = Load(sequences=64, prompt=256, new=128, rounds=1)
    return found | {"decode: 0.6B against transformers": part(PEER, "0.6B", SMALL, short, device)}


def tiny_parts() -> dict[str, Part]:
    """Return the same on shapes that a CPU computes in seconds: that it runs is all that it shows."""
    import torch
    from decoding import Load
    from grpo import Sizes
    from qwen3 import TINY

    shape = ("tiny", TINY, torch.device("cpu"))
    load = Load(sequences=4, prompt=16, new=8, rounds=1)
    small = {"tokens": 512, "length": 64, "pass_tokens": 256, "rounds": 1}
    mixed = {"sequences": 4, "prompt": 16, "new": 100, "arrivals": 2}
    step = Sizes(groups=2, size=2, prompt=16, new=16, pass_tokens=256, steps=1)
    name, config, device = shape
    return {
        "decode: tiny": part("decoding.decoding", name, config, load, device),
        "decode: tiny, mixed steps": part("mixing.mixing", *shape, **mixed),
        "decode: tiny against transformers": part(PEER, name, config, load, device),
        "train: tiny, full, equal": part(TRAINING, name, "full", "equal", config, device, **small),
        "train: tiny, LoRA, spread": part(
            TRAINING, name, "LoRA", "spread", config, device, **small
        ),
        "swap: tiny": part("swapping.swapping", *shape, swaps=3, new=32),
        "grpo: tiny": part("grpo.grpo", *shape, step),
        "grpo: tiny against TRL": part(TRL, *shape, step, limit=200),
        "parity: tiny": part("parity.parity", *shape, sequences=4, prompt=16, new=16),
    }


def main(tiny: bool, only: list[str], limit: float) -> int:
    """Run every part of the kinds `only`; return how many failed or, on a GPU, missed a bar."""
    import torch

    if not tiny and not torch.cuda.is_available():
        print("There is no GPU here. Use --tiny to run everything on tiny shapes.", file=sys.stderr)
        return 2
    print("CPU, tiny shapes" if tiny else torch.cuda.get_device_name(), flush=True)
    names = [
        name
        for name in (tiny_parts() if tiny else parts())
        if not only or name.partition(":")[0] in only
    ]
    troubles = []
    for name in names:
        print(name, flush=True)
        started = perf_counter()
        trouble = run_apart(name, tiny, limit)
        print(f"  ({perf_counter() - started:.0f} s)", flush=True)
        if trouble and not (tiny and trouble == "missed a bar"):
            troubles.append(f"{name} {trouble}")
    for trouble in troubles:
        print(trouble, file=sys.stderr)
    return len(troubles)


def run_apart(name: str, tiny: bool, limit: float) -> str:
    """Run a part in a process of its own, which is killed after `limit` seconds; return what went wrong, or nothing."""
    command = [sys.executable, __file__, "--part", name, *(["--tiny"] if tiny else [])]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        code = process.wait(limit)
    except subprocess.TimeoutExpired:
        return f"was not finished after {limit:g} s and was killed"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if code == MISSED:
        return "missed a bar"
    return f"failed (exit status {code})" if code else ""


def run_part(name: str, tiny: bool) -> int:
    """Run one part in this process."""
    held = (tiny_parts() if tiny else parts())[name]()
    return 0 if all(held) else MISSED


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="tiny shapes, on the CPU")
    parser.add_argument("--only", action="append", default=[], choices=KINDS, help="repeatable")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for each part")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        sys.exit(run_part(options.part, options.tiny))
    sys.exit(main(options.tiny, options.only, options.limit))
