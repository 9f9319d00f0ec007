"""Every figure that needs a GPU, in one run of under 8 minutes; `--tiny` runs all of it on a CPU, on tiny shapes.

    python benchmarks/gpu/run_all.py

Random weights in the shapes of Qwen3-0.6B and Qwen3-4B, bf16:

- `decoding`: 256 sequences, 512 tokens in and 512 out: tokens a second over what memory bandwidth allows (weights once
  a step and every sequence's keys and values once, over the measured bandwidth), and over the continuous batching of
  `transformers` on the same weights, whole runs compared, its warm-up left out;
- `training`: the 4B shape, 65,536 packed tokens in sequences of 1,024, half of them sampled, forward and backward with
  full weights and with LoRA: the operations that the mathematics asks for, over those of a measured matrix product;
- `swapping`: new weights under a sampler that is drawing from them.

Each prints its ratio and the bar. A part that fails (out of memory, say) is told, and the others run.
"""

from __future__ import annotations

import argparse
import gc
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parents[1] / "perf"))

import torch
from decoding import Load, decoding
from qwen3 import LARGE, SMALL, TINY, release
from swapping import swapping
from training import training
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

Part = Callable[[], list[bool]]


def parts(device: torch.device) -> list[Part]:
    """Return what is measured on a GPU, the most telling first."""
    return [
        partial(decoding, "0.6B", SMALL, Load(), device),
        partial(training, "4B", "full", LARGE, device),
        partial(training, "4B", "LoRA", LARGE, device),
        partial(swapping, "4B", LARGE, device),
        partial(decoding, "4B", LARGE, Load(rounds=1), device),
    ]


def tiny_parts() -> list[Part]:
    """Return the same on shapes that a CPU computes in seconds: that it runs is all that it shows."""
    device = torch.device("cpu")
    small = {"tokens": 512, "length": 64, "pass_tokens": 256, "rounds": 1}
    return [
        partial(decoding, "tiny", TINY, Load(sequences=4, prompt=16, new=8, rounds=1), device),
        partial(training, "tiny", "full", TINY, device, **small),
        partial(training, "tiny", "LoRA", TINY, device, **small),
        partial(swapping, "tiny", TINY, device, swaps=3, new=32),
    ]


def main(tiny: bool) -> int:
    """Run every part; return how many failed to run, or, on a GPU, missed a bar."""
    set_verbosity_error()
    disable_progress_bar()
    if not tiny and not torch.cuda.is_available():
        print("There is no GPU here. Use --tiny to run everything on tiny shapes.", file=sys.stderr)
        return 2
    device = torch.device("cpu" if tiny else "cuda")
    print(torch.cuda.get_device_name() if device.type == "cuda" else "CPU, tiny shapes")
    failed = 0
    for part in tiny_parts() if tiny else parts(device):
        started = perf_counter()
        try:
            held = part()
        except Exception:
            traceback.print_exc()
            failed += 1
        else:
            failed += 0 if tiny else held.count(False)
        gc.collect()
        release(device)
        print(f"  ({perf_counter() - started:.0f} s)", flush=True)
    return failed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="tiny shapes, on the CPU")
    sys.exit(main(parser.parse_args().tiny))
