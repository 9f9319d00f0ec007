"""What each phase of a training step must do at least, how fast this machine could do it, and how fast we do.

For every phase the operations and bytes are counted by hand from the policy's shape; the ceilings are measured here:
matrix products of these very shapes, memory bandwidth over a working set of this size, a lock passed between two
threads, a bare `await`. The floor is the larger of operations over the first and bytes over the second.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import shapes
import torch
from counts import Counts
from measure import seconds
from records import report
from sizes import size

from hud.agents import ScriptedAgent
from hud.engine.config import DecoderConfig
from hud.engine.learn.local_trainer import LocalTrainer
from hud.engine.policy import Policy
from hud.engine.sample.options import SamplerOptions
from hud.environment import Environment
from hud.eval import Job, LocalRuntime, Taskset
from hud.trace import Completion, SamplingParams, ToolCall

PROMPTS, PROMPT = size((8, 512), (2, 16))
ROWS, CONTEXT, NEW = size((64, 64, 64), (2, 8, 4))
SEQUENCES, LENGTH = size((64, 128), (2, 16))
TOOL_CALLS, RUNS = size((4, 200), (2, 2))


@dataclass(frozen=True)
class Phase:
    """A row of the table."""

    name: str
    operations: float
    """Floating-point operations, a product and a sum counted as two."""
    moved: float
    """Bytes read or written."""
    floor: float
    """Seconds."""
    measured: float


def fastest(work: Callable[[], object], times: int) -> float:
    """Return the least seconds of a call: a ceiling is what the machine can do undisturbed."""
    work()
    return min(seconds(work) for _ in range(times))


def product_rate(counts: Counts, rows: int) -> float:
    """Return operations a second of a layer's matrix products over so many rows, at the better thread setting."""
    pairs = [(torch.randn(rows, one), torch.randn(other, one)) for one, other in counts.products]

    def layer() -> None:
        for left, right in pairs:
            torch.nn.functional.linear(left, right)

    before, found = torch.get_num_threads(), 0.0
    for threads in {1, before}:
        torch.set_num_threads(threads)
        found = max(found, 2 * rows * counts.layer / fastest(layer, 30))
    torch.set_num_threads(before)
    return found


def bandwidth(size: float) -> float:
    """Return bytes a second read and written, over a working set of `size` bytes."""
    source = torch.ones(max(1, int(size / 8)))
    target = torch.empty_like(source)
    return 2 * source.nbytes / fastest(lambda: target.copy_(source), 50)


def lock_seconds() -> float:
    """Return how long it takes to wake another thread and be woken by it."""
    here, there = threading.Semaphore(0), threading.Semaphore(0)
    times = 2000

    def answer() -> None:
        for _ in range(times):
            there.acquire()
            here.release()

    def ask() -> None:
        for _ in range(times):
            there.release()
            here.acquire()

    other = threading.Thread(target=answer)
    other.start()
    elapsed = seconds(ask)
    other.join()
    return elapsed / times


def await_seconds() -> float:
    """Return how long it takes to give the event loop a turn."""
    times = 20_000

    async def give() -> None:
        for _ in range(times):
            await asyncio.sleep(0)

    return seconds(lambda: asyncio.run(give())) / times


def random_prompts(config: DecoderConfig, rows: int, length: int) -> list[list[int]]:
    """Return prompts that no cache knows."""
    return torch.randint(9, config.vocab_size, (rows, length)).tolist()


def sampling_seconds(policy: Policy, rows: int, length: int, new: int) -> float:
    """Return how long the policy takes for new prompts."""
    prompts = random_prompts(policy.decoder.config, rows, length)

    async def sample() -> None:
        params = SamplingParams(max_tokens=new)
        await asyncio.gather(*(policy.sample(prompt, params) for prompt in prompts))

    return seconds(lambda: asyncio.run(sample()))


def phases(policy: Policy, rounds: int) -> list[Phase]:
    """Return the phases that depend on the policy's shape."""
    counts = Counts(policy.decoder.config)
    policy.chat.stop_ids = frozenset()
    shapes.settle(policy)
    trainer = LocalTrainer(policy.decoder)
    batch = shapes.datums(policy.decoder.config.vocab_size, SEQUENCES, LENGTH)
    times: dict[str, list[float]] = {}

    def note(name: str, elapsed: float) -> None:
        times.setdefault(name, []).append(elapsed)

    def hand_over() -> None:
        with policy.exclusive():
            policy.checkpoint = f"step-{trainer.step}"

    for _ in range(rounds + 1):
        note("prefill", sampling_seconds(policy, PROMPTS, PROMPT, 1))
        first = sampling_seconds(policy, ROWS, CONTEXT, 1)
        whole = sampling_seconds(policy, ROWS, CONTEXT, 1 + NEW)
        note("decode", max(whole - first, 0) / NEW)
        note("gradient", seconds(lambda: trainer.forward_backward(batch, "ppo")))
        note("optimizer", seconds(lambda: trainer.optim_step(1e-6)))
        note("hand-over", seconds(hand_over))
    found = {name: statistics.median(values[1:]) for name, values in times.items()}

    narrow = product_rate(counts, ROWS)
    # What is wide can be computed in narrow parts.
    wide = max(narrow, product_rate(counts, PROMPTS * PROMPT))
    weights = counts.weights * counts.element
    rate = bandwidth(weights)

    def phase(
        name: str, key: str, operations: float, moved: float, product: float, moving: float
    ) -> Phase:
        floor = max(operations / product, moved / moving)
        return Phase(name, operations, moved, floor, found[key])

    prefill = counts.forward(PROMPTS * PROMPT, PROMPTS * PROMPT * (PROMPT + 1) / 2, PROMPTS)
    context = CONTEXT + NEW / 2
    step = counts.forward(ROWS, ROWS * context, ROWS)
    gradient = 3 * counts.forward(
        SEQUENCES * LENGTH, SEQUENCES * LENGTH * (LENGTH + 1) / 2, SEQUENCES * LENGTH // 2
    )
    cache = counts.cache(PROMPTS * PROMPT)
    print(
        f"ceilings: products {wide / 1e9:.0f} GFLOP/s at {PROMPTS * PROMPT} rows, {narrow / 1e9:.0f} at {ROWS}; "
        f"memory {rate / 1e9:.1f} GB/s over {weights / 1e6:.1f} MB",
        flush=True,
    )
    return [
        phase(f"prefill, {PROMPTS} x {PROMPT}", "prefill", prefill, weights + cache, wide, rate),
        phase(
            f"decode step, {ROWS} rows at {context:.0f}",
            "decode",
            step,
            weights + counts.cache(ROWS * context),
            narrow,
            rate,
        ),
        phase(
            f"forward and backward, {SEQUENCES} x {LENGTH}",
            "gradient",
            gradient,
            3 * weights,
            wide,
            rate,
        ),
        # Reads weights, gradients and both moments; writes all but the gradients.
        phase(
            "optimizer",
            "optimizer",
            12 * counts.weights,
            7 * weights,
            narrow,
            bandwidth(4 * weights),
        ),
        Phase("weight hand-over, shared", 0, 0, lock_seconds(), found["hand-over"]),
    ]


environment = Environment("floors")


@environment.tool
async def look_up(key: str) -> str:
    """Look a key up."""
    return key


@environment.template()
async def question(number: int = 0):
    """Ask for look-ups."""
    yield f"Question {number}."
    yield 1.0


def environment_step(rounds: int) -> Phase:
    """Return what a turn with a tool call costs in the loop, recorded: many loops of five turns less those of one."""

    def agent(calls: int) -> ScriptedAgent:
        def policy(messages, _tools, _trace):
            turn = sum(message["role"] == "assistant" for message in messages)
            if turn < calls:
                call = ToolCall(id=f"call-{turn}", name="look_up", arguments={"key": "key"})
                return Completion(tool_calls=[call])
            return Completion(content="Done.")

        return ScriptedAgent(policy)

    async def play(calls: int) -> float:
        tasks = Taskset("floors", [question(number=number) for number in range(RUNS)])
        job = await Job.start("floors")
        started = asyncio.get_running_loop().time()
        await tasks.run(agent(calls), runtime=LocalRuntime(environment), job=job, max_concurrent=64)
        elapsed = asyncio.get_running_loop().time() - started
        await job.finish()
        return elapsed / RUNS

    async def turns() -> list[float]:
        await play(0)  # Imports, and the store's first transaction.
        return [(await play(TOOL_CALLS) - await play(0)) / TOOL_CALLS for _ in range(rounds)]

    measured = statistics.median(asyncio.run(turns()))
    return Phase("environment step, a tool call, recorded", 0, 0, await_seconds(), measured)


def report_phase(policy: str, phase: Phase) -> None:
    """Report how long a phase takes, against its floor."""
    report(
        f"{phase.name}, {policy}",
        phase.measured * 1e3,
        "ms",
        peer=f"floor of {phase.operations / 1e6:,.1f} Mflop and {phase.moved / 1e6:,.2f} MB",
        peer_value=phase.floor * 1e3,
    )


def main(rounds: int) -> None:
    """Report every phase."""
    with tempfile.TemporaryDirectory() as name:
        os.environ["HUD_HOME"] = f"{name}/home"
        os.environ.pop("HUD_API_URL", None)
        for label, sizes in (("demo", shapes.DEMO), ("3.3M", shapes.MIDDLE)):
            folder = Path(name) / label
            shapes.create_policy(folder, sizes)
            policy = Policy.load(folder, sampling=SamplerOptions(slots=ROWS))
            parameters = sum(one.numel() for one in policy.decoder.parameters())
            for phase in phases(policy, rounds):
                report_phase(f"{parameters / 1e6:.2f}M parameters", phase)
            policy.close()
        report_phase("any policy", environment_step(rounds))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=size(7, 1))
    main(parser.parse_args().rounds)
