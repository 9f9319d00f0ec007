"""Five-step tool loops a second: a scripted model in process, four tool calls, everything recorded.

Bar: 500 a second on two cores, flat from 32 to 1,000 concurrent. The plain loop beside it makes the same
turns and tool calls by hand and writes each turn as a line of JSON.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

import orjson
from records import report
from sizes import size

from hud.agents import ScriptedAgent
from hud.environment import Environment
from hud.eval import Job, LocalRuntime, Taskset
from hud.trace import Completion, Sample, ToolCall, Usage

RUNS, WIDTHS = size((1000, (32, 256, 1000)), (4, (1, 2)))
TOOL_CALLS = 4
BAR = 500.0

environment = Environment("bench")


@environment.tool
async def look_up(key: str) -> str:
    """Look a key up."""
    return f"The value of {key} is 42."


@environment.template()
async def question(number: int = 0):
    """Ask for a value that takes four look-ups."""
    answer = yield f"Question {number}: look four keys up, then answer."
    yield 1.0 if "42" in answer else 0.0


def policy(messages, _tools, _trace):
    """Look four keys up, then answer; each turn carries 48 prompt ids more and 16 sampled ids."""
    turn = sum(message["role"] == "assistant" for message in messages)
    prompt = list(range(64 * (turn + 1)))
    sample = Sample(prompt_token_ids=prompt, output_token_ids=[7] * 16, output_logprobs=[-0.5] * 16)
    usage = Usage(prompt_tokens=len(prompt), completion_tokens=16)
    if turn < TOOL_CALLS:
        call = ToolCall(id=f"call-{turn}", name="look_up", arguments={"key": f"key-{turn}"})
        return Completion(tool_calls=[call], sample=sample, usage=usage)
    return Completion(content="It is 42.", sample=sample, usage=usage)


async def framework(width: int) -> float:
    """Return recorded loops a second at `width` concurrent."""
    tasks = Taskset("bench", [question(number=number) for number in range(RUNS)])
    job = await Job.start(f"tool loops x{width}")
    agent = ScriptedAgent(policy)
    started = time.perf_counter()
    await tasks.run(agent, runtime=LocalRuntime(environment), job=job, max_concurrent=width)
    rate = RUNS / (time.perf_counter() - started)
    assert job.reward == 1.0, job.errors[:1]
    assert all(len(run.trace.steps) == 2 + 5 + 4 + 1 for run in job.runs)
    await job.finish()
    return rate


async def plain(width: int, folder: Path) -> float:
    """Return loops a second of the same turns, driven by hand, with a JSON line for each step."""
    numbers = iter(range(RUNS))

    async def work(log) -> None:
        for number in numbers:
            messages = [{"role": "user", "content": f"Question {number}"}]
            for _ in range(TOOL_CALLS + 1):
                completion = policy(messages, [], None)
                sample = completion.sample
                turn = {
                    "content": completion.content,
                    "calls": [call.model_dump() for call in completion.tool_calls],
                    "sample": sample.model_dump(),
                }
                log.write(orjson.dumps(turn, option=orjson.OPT_APPEND_NEWLINE))
                messages.append({"role": "assistant", "content": completion.content})
                for call in completion.tool_calls:
                    result = f"The value of {call.arguments['key']} is 42."
                    log.write(orjson.dumps({"result": result}, option=orjson.OPT_APPEND_NEWLINE))
                    messages.append({"role": "tool", "content": result})
            await asyncio.sleep(0)

    with (folder / f"plain-{width}.jsonl").open("wb") as log:
        started = time.perf_counter()
        await asyncio.gather(*(work(log) for _ in range(width)))
        return RUNS / (time.perf_counter() - started)


async def main(folder: Path) -> int:
    """Print a line for each width; fail below the bar."""
    await framework(WIDTHS[0])  # Imports, and the store's first transaction.
    rates = []
    for width in WIDTHS:
        baseline, rate = await plain(width, folder), await framework(width)
        rates.append(rate)
        report(
            f"recorded loops, {width} concurrent", rate, "/s", peer="by hand", peer_value=baseline
        )
    held = report("slowest of the widths", min(rates), "/s", bar=BAR)
    report("fastest over slowest width", max(rates) / min(rates), "times")
    return int(not held)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as home:
        os.environ["HUD_HOME"] = home
        os.environ.pop("HUD_API_URL", None)
        sys.exit(asyncio.run(main(Path(home))))
