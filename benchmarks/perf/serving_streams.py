"""256 concurrent streams from an engine's process, against the sampler driven directly in this one.

The same weights, prompts and threads; streams arrive as they are drawn, token by token where readers keep up. Also prints
how long one model's streams wait for their next tokens while another is trained in the same process.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from pathlib import Path
from time import perf_counter

from records import report
from sizes import size

from hud.engine.cpu_threads import limit
from hud.learning.wire_types import ForwardBackwardRequest, OptimStepRequest
from hud.trace import SamplingParams
from hud.train import TrajectoryPayload, TrajectorySample
from hud_platform.application import create_app
from hud_platform.models.records import ModelRecord
from hud_platform.parts import Parts
from hud_platform.process.config import PlatformConfig
from hud_platform.serving.token_engine import TokenDelta, TokenRequest
from hud_platform.store.tables import LOCAL_TEAM

STREAMS, PROMPT, NEW, ROUNDS = size((256, 32, 64, 5), (2, 4, 4, 1))
TRAINED, WAITED = size((64, 400), (2, 8))
SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprst" for vowel in "aeiou"]
WORDS = [f"{one}{other}{one} {other}{one}" for one in SYLLABLES for other in SYLLABLES]
SIZES = {"vocab_size": 1024, "hidden": 128, "layers": 4}


def requests(round_number: int) -> list[TokenRequest]:
    """New prompts each time, so that nothing is found in the cache."""
    return [
        TokenRequest(
            [(place * 7 + at * 13 + round_number * 131) % 1000 for at in range(PROMPT)],
            SamplingParams(max_tokens=NEW),
            frozenset(),
        )
        for place in range(STREAMS)
    ]


async def streamed(platform: Parts, model: ModelRecord, number: int) -> tuple[float, int]:
    """Return tokens a second, and in how many pieces they came."""
    pieces = 0

    async def one(asked: TokenRequest) -> int:
        nonlocal pieces
        count = 0
        async for item in platform.engine.stream(model, None, asked):
            if isinstance(item, TokenDelta):
                count += len(item.token_ids)
                pieces += 1
        return count

    started = perf_counter()
    counts = await asyncio.gather(*map(one, requests(number)))
    return sum(counts) / (perf_counter() - started), pieces


async def direct(platform: Parts, model: ModelRecord, number: int) -> float:
    sampler = platform.policies.policy(model, None).sampler
    started = perf_counter()
    drawn = await asyncio.gather(
        *(sampler.sample(asked.prompt, asked.params, asked.stop_ids) for asked in requests(number))
    )
    return sum(len(one.token_ids) for one in drawn) / (perf_counter() - started)


async def beside_training(platform: Parts, model: ModelRecord, trained: ModelRecord) -> None:
    """Print the waits for tokens of one model, alone and while another is trained."""
    payloads = [
        TrajectoryPayload(
            samples=[
                TrajectorySample(
                    prompt_token_ids=[at % 1000 for at in range(place, place + 200)],
                    output_token_ids=[at % 1000 for at in range(place, place + 200)],
                    output_logprobs=[-6.9] * 200,
                )
            ],
            reward=float(place % 2),
        )
        for place in range(TRAINED)
    ]
    batch = ForwardBackwardRequest(inputs=payloads, loss_fn="importance_sampling")

    async def waits() -> list[float]:
        last, found = perf_counter(), []
        async for _ in platform.engine.stream(
            model, None, TokenRequest([1, 2, 3], SamplingParams(max_tokens=WAITED), frozenset())
        ):
            now = perf_counter()
            found.append(now - last)
            last = now
        return sorted(found)

    def told(found: list[float]) -> str:
        longest, middle = found[-1] * 1e3, statistics.median(found) * 1e3
        return f"median {middle:5.1f} ms, 99% {found[int(len(found) * 0.99)] * 1e3:5.1f} ms, longest {longest:5.1f} ms"

    print(f"  next tokens, alone                    {told(await waits())}")
    done = asyncio.Event()

    async def train() -> float:
        started = perf_counter()
        for _ in range(2):
            await platform.engine.call(trained, batch)
            step = OptimStepRequest(learning_rate=1e-4)
            await platform.engine.call(trained, step)
        done.set()
        return (perf_counter() - started) / 2

    training = asyncio.create_task(train())
    found: list[float] = []
    while not done.is_set():
        found += await waits()
    seconds = await training
    print(
        f"  next tokens, beside {seconds:4.1f} s of training {told(sorted(found))}, {len(payloads) * 400:,} tokens a step"
    )


async def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        app = create_app(PlatformConfig(Path(name), engine="worker"))
        platform: Parts = app.state.parts
        registry = platform.registry.of(LOCAL_TEAM)
        model, trained = (registry.create(slug, WORDS, sizes=SIZES) for slug in ("a", "b"))
        limit(sampling=1)
        pairs: list[tuple[float, float]] = []
        for number in range(ROUNDS + 1):
            rate, pieces = await streamed(platform, model, number)
            pair = rate, await direct(platform, model, number)
            if number:  # The first round warms both up.
                pairs.append(pair)
        mine, reference = (statistics.median(rates) for rates in zip(*pairs, strict=True))
        what = f"{STREAMS} streams of {PROMPT} + {NEW} tokens through the engine's process"
        print(f"  the last time in {pieces:,} pieces")
        report(what, mine, "tokens/s", peer="sampler directly", peer_value=reference)
        await beside_training(platform, model, trained)
        await platform.engine.stop()
        platform.close()


if __name__ == "__main__":
    asyncio.run(main())
