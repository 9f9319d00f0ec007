"""Sampling of a real model's size on a CPU, against `transformers` and the least time that its bytes and products take.

The shape of SmolLM2-135M with random weights: prompts of 200 tokens, new ones each time, and 64 new tokens each, for 1, 16 and 64
sequences at once, in the dtype that this CPU is fastest in. The floor reads the weights and keys once a step, and does the
products, at rates measured in the same run. `--vllm URL` and `--llama FILE.gguf` add a vLLM server and llama.cpp by turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter

import torch
from measure import by_turns, seconds
from records import report
from sampling_rates import generate, policy_rate
from shapes import MIDDLE, create_policy
from sizes import size
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.utils.logging import disable_progress_bar

from hud.engine.models.precision import computing_type
from hud.engine.policy import Policy
from hud.engine.sample.options import SamplerOptions

PROMPT, NEW, BATCHES = size((200, 64, (1, 16, 64)), (8, 4, (1, 2)))
SHAPE = {
    "vocab_size": size(49152, 600),
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": size(30, 1),
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "rope_theta": 100_000.0,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
BARS = {
    "floor": {1: 0.6, 16: 0.55, 64: 0.55},
    "vllm": {16: 2.0, 64: 2.0},
}
"""At least so much of a peer's rate, by sequences at once."""

Prompts = list[list[int]]


def create(folder: Path) -> None:
    """Write a Llama folder of this shape with random weights and some tokenizer."""
    create_policy(folder, MIDDLE)
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SHAPE)).save_pretrained(folder)


def transformers_rate(model: torch.nn.Module, prompts: Prompts) -> float:
    """Return tokens a second of `transformers`' `generate`, on all cores."""
    torch.set_num_threads(os.cpu_count() or 1)
    return NEW * len(prompts) / seconds(lambda: generate(model, prompts, NEW))


def served(url: str, prompts: Prompts) -> float:
    """Return tokens a second of a vLLM server, all prompts at once."""
    with urllib.request.urlopen(f"{url}/v1/models") as answer:
        model = json.load(answer)["data"][0]["id"]

    def complete(prompt: list[int]) -> None:
        body = {"model": model, "prompt": prompt, "max_tokens": NEW, "ignore_eos": True}
        request = urllib.request.Request(
            f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as answer:
            answer.read()

    started = perf_counter()
    with ThreadPoolExecutor(len(prompts)) as pool:
        list(pool.map(complete, prompts))
    return NEW * len(prompts) / (perf_counter() - started)


def floor(policy: Policy, batch: int) -> float:
    """Return the tokens a second of the least time: weights and keys read once a step, and the products of all tokens."""
    torch.set_num_threads(os.cpu_count() or 1)
    config, dtype = policy.decoder.config, policy.decoder.dtype
    parameters = list(policy.decoder.parameters())
    weights = sum(parameter.nbytes for parameter in parameters)
    products = 2 * sum(parameter.numel() for parameter in parameters)
    block = torch.ones(64 << 20, dtype=torch.int32)
    bytes_per_second = block.nbytes / min(seconds(block.max) for _ in range(5))
    x, square = torch.ones(1024, 1024, dtype=dtype), torch.ones(1024, 1024, dtype=dtype)
    operations_per_second = 2 * 1024**3 / min(seconds(lambda: x @ square) for _ in range(5))
    key_bytes = (
        2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * dtype.itemsize
    )
    keys = batch * (PROMPT + NEW / 2) * key_bytes
    step = max(
        (weights + keys) / bytes_per_second,
        batch * products / operations_per_second,
    )
    prefill = batch * PROMPT * products / operations_per_second
    return NEW * batch / (NEW * step + prefill)


def main(rounds: int, vllm: str | None, llama: str | None) -> None:
    """Print each batch size."""
    disable_progress_bar()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        create(folder)
        dtype = computing_type(torch.bfloat16, "cpu")
        policy = Policy.load(folder, dtype=dtype, sampling=SamplerOptions(slots=max(BATCHES)))
        policy.chat.stop_ids = frozenset()  # Nothing ends a row before its length.
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
        for batch in BATCHES:
            compare(policy, model, batch, rounds, vllm, llama)
        policy.close()


def compare(
    policy: Policy,
    model: torch.nn.Module,
    batch: int,
    rounds: int,
    vllm: str | None,
    llama: str | None,
) -> None:
    """Measure one batch size by turns and report it."""
    tokens = torch.Generator().manual_seed(batch)
    vocabulary = policy.decoder.config.vocab_size

    def prompts() -> Prompts:
        return torch.randint(9, vocabulary, (batch, PROMPT), generator=tokens).tolist()

    sides: dict[str, Callable[[], float]] = {
        "ours": lambda: policy_rate(policy, prompts(), [NEW] * batch),
        "transformers": lambda: transformers_rate(model, prompts()),
        "floor": lambda: floor(policy, batch),
    }
    if vllm is not None:
        sides["vllm"] = lambda: served(vllm, prompts())
    if llama is not None and batch == 1:
        sides["llama.cpp"] = llama_side(llama, prompts)
    rates = {name: statistics.median(side) for name, side in by_turns(sides, rounds).items()}
    dtype = str(policy.decoder.dtype).removeprefix("torch.")
    for name, rate in rates.items():
        print(f"  {batch} sequences, {dtype}: {name:<14} {rate:8,.0f} tokens/s", flush=True)
    for peer in rates.keys() - {"ours"}:
        share = BARS.get(peer, {}).get(batch)
        report(
            f"{batch} sequences, {dtype}, over {peer}",
            rates["ours"],
            "tokens/s",
            peer=peer,
            peer_value=rates[peer],
            bar=None if share is None else share * rates[peer],
        )


def llama_side(file: str, prompts: Callable[[], Prompts]) -> Callable[[], float]:
    """Return a measurement of llama.cpp, one sequence at a time."""
    from llama_cpp import Llama

    model = Llama(file, n_ctx=PROMPT + NEW, verbose=False)

    def measured() -> float:
        [prompt] = prompts()
        model.reset()
        started = perf_counter()
        drawn = model.generate(prompt, temp=1.0, top_k=0, top_p=1.0, min_p=0.0, repeat_penalty=1.0)
        for _ in range(NEW):
            next(drawn)
        return NEW / (perf_counter() - started)

    return measured


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=size(3, 1))
    parser.add_argument("--vllm", help="URL of a vLLM server of the same shape")
    parser.add_argument("--llama", help="a GGUF file for llama.cpp")
    given = parser.parse_args()
    main(given.rounds, given.vllm, given.llama)
