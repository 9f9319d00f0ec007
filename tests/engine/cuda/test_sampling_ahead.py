"""Sampling ahead gives the tokens of the synchronous path: arrivals, stops, grammars, preemption and swaps included."""

import asyncio
import threading

import numpy as np
import pytest
import torch
from tests.engine.random_decoder import CONFIG, random_decoder

from hud.engine.cuda import runner
from hud.engine.cuda.runner import CudaRunner
from hud.engine.decoder import Decoder
from hud.engine.sample.request import Turn, wait_for_turn
from hud.engine.sample.runner import Runner
from hud.trace import SamplingParams

CACHE_BYTES = 14 * 2 * 2 * 2 * 64 * 16 * 4
"""14 pages, so that some sequences are preempted."""
KINDS = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.7},
    {"top_k": 5},
    {"top_p": 0.8},
    {"temperature": 1.5},
]


class EvenIds:
    """A constraint that allows even ids alone."""

    def allow(self, logits):
        logits[1::2] = float("-inf")

    def take(self, token):
        assert token % 2 == 0


def turn(number, **extra):
    rng = np.random.default_rng(number)
    return Turn(
        prompt=rng.integers(0, CONFIG.vocab_size, 3 + 9 * number).tolist(),
        params=SamplingParams(max_tokens=3 + 9 * (number % 6), seed=number, **KINDS[number % 6]),
        stop_ids=frozenset([7, 8, 9]) if number % 2 else frozenset(),
        **extra,
    )


async def play(sampler, turns):
    async def one(number, made):
        await asyncio.sleep(0.002 * number)  # Arrivals while others decode.
        request = None

        def submit(listener):
            nonlocal request
            request = sampler.submit(made, listener)
            return request

        return await wait_for_turn(submit), request.likeliest

    return await asyncio.gather(*(one(*pair) for pair in enumerate(turns)))


def special(number):
    return {
        4: {"constraint": EvenIds()},
        6: {"top": 3},
        8: {"stopped": lambda ids: len(ids) == 5},
        10: {"followed": True},
    }.get(number, {})


@pytest.mark.parametrize("mixed", [False, True], ids=["plain", "with constraints and watchers"])
def test_it_gives_the_tokens_of_the_synchronous_path(sampler_of, monkeypatch, mixed):
    decoder = random_decoder(kind=Decoder)
    ahead = set()
    original = CudaRunner.decode

    def decode(self, batch):
        sampled = original(self, batch)
        ahead.update(len(ids) for _, ids, _ in sampled)
        return sampled

    monkeypatch.setattr(CudaRunner, "decode", decode)
    monkeypatch.setattr(runner, "AHEAD_SECONDS", 1e9)  # Whatever a slow machine does.
    found = []
    for kind in (Runner, CudaRunner):
        sampler = sampler_of(kind, decoder, slots=5, max_context=256, cache_bytes=CACHE_BYTES)
        turns = [turn(number, **(special(number) if mixed else {})) for number in range(14)]
        found.append(asyncio.run(play(sampler, turns)))
        sampler.close()
    for (mine, likeliest), (theirs, expected) in zip(*found, strict=True):
        assert mine.token_ids == theirs.token_ids
        assert mine.finish_reason == theirs.finish_reason
        np.testing.assert_allclose(mine.logprobs, theirs.logprobs, atol=1e-5)
        # Turns that ask for none may have empty rows.
        assert [[one for one, _ in row] for row in likeliest if row] == [
            [one for one, _ in row] for row in expected if row
        ]
    assert mixed or max(ahead) > 1


def test_weights_that_change_in_flight_take_over_where_the_swap_says(sampler_of):
    decoder = random_decoder(kind=Decoder)
    sampler = sampler_of(CudaRunner, decoder, slots=2, max_context=1024, version="old")
    params = SamplingParams(max_tokens=900, seed=1)
    swapping = threading.Event()

    def swap():
        swapping.set()
        with sampler.exclusive(in_flight=True):
            place = len(sampler.active[0].token_ids)
            with torch.no_grad():
                decoder.model.norm.weight.mul_(0.5)
            sampler.set_version("new")
        return place

    async def swapped():
        reached = asyncio.Event()
        loop = asyncio.get_running_loop()

        def stopped(ids):
            if len(ids) == 20:
                loop.call_soon_threadsafe(reached.set)
                swapping.wait()
            return False

        made = Turn(prompt=[1, 2, 3], params=params, stop_ids=frozenset(), stopped=stopped)
        going = asyncio.ensure_future(
            wait_for_turn(lambda listener: sampler.submit(made, listener))
        )
        await reached.wait()
        place = await asyncio.to_thread(swap)
        return place, await going

    place, found = asyncio.run(swapped())
    sampler.close()
    assert (found.version, found.swaps) == ("old", [(place, "new")])
    reference = sampler_of(Runner, random_decoder(kind=Decoder), slots=2, max_context=1024)
    before = asyncio.run(reference.sample([1, 2, 3], params, frozenset()))
    reference.close()
    assert found.token_ids[:place] == before.token_ids[:place]
    assert found.logprobs[place:] != before.logprobs[place:]


def test_a_caller_that_waits_ends_a_call_early(sampler_of):
    decoder = random_decoder(kind=Decoder)
    sampler = sampler_of(CudaRunner, decoder, slots=2, max_context=512)
    counts = []
    original = sampler._runner.decode

    def decode(batch):
        sampled = original(batch)
        counts.append(len(sampled[0][1]))
        return sampled

    sampler._runner.decode = decode
    sampler._runner.interrupted = lambda: len(counts) == 1
    params = SamplingParams(max_tokens=40, seed=1)
    asyncio.run(sampler.sample([1, 2, 3], params, frozenset()))
    sampler.close()
    assert counts[0] > 1
    assert counts[1] == 1
