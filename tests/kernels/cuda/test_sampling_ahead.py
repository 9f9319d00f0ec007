"""Sampling ahead gives the tokens of the synchronous path: arrivals, stops, grammars, preemption and swaps included."""

import asyncio
import threading
from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch
from tests.engine.random_decoder import CONFIG, random_decoder
from tests.engine.rounding import logprob_tolerance
from tests.engine.waiting import until

from hud.engine.sample.plain_runner import PlainRunner
from hud.engine.sample.request import Turn, wait_for_turn
from hud.errors import InfrastructureFault
from hud.trace import SamplingParams
from hud_kernels.cuda.decode_step import DecodeGraphs
from hud_kernels.cuda.runner import HELD_STEPS, CudaRunner

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


def calls_of(monkeypatch):
    """Return a list to which each `decode` adds its steps: the most tokens that a sequence got."""
    calls, original = [], CudaRunner.decode

    def decode(self, batch):
        place, deliver = len(calls), self.deliver
        counts = Counter()
        calls.append(0)

        def count(sampled):
            counts.update({request: len(ids) for request, ids, _ in sampled})
            calls[place] = max(counts.values(), default=0)

        def counted(sampled):
            count(sampled)
            deliver(sampled)

        self.deliver = counted
        try:
            rest = original(self, batch)
        finally:
            self.deliver = deliver
        count(rest)
        return rest

    monkeypatch.setattr(CudaRunner, "decode", decode)
    return calls


def randomly_special(number, rng):
    """Return what one of the callers wants, at random."""
    return [
        {},
        {},
        {"constraint": EvenIds()},
        {"top": int(rng.integers(1, 5))},
        {"stopped": partial(long_enough, int(rng.integers(2, 40)))},
        {"followed": True},
        {"followed": True, "stopped": partial(long_enough, int(rng.integers(2, 40)))},
    ][rng.integers(7)]


def long_enough(count, ids):
    return len(ids) == count


def plain(number, rng):
    return {}


def special(number, rng):
    return {
        4: {"constraint": EvenIds()},
        6: {"top": 3},
        8: {"stopped": lambda ids: len(ids) == 5},
        10: {"followed": True},
    }.get(number, {})


MIXES = {"plain": (plain, 0), "special": (special, 0)} | {
    f"random {seed}": (randomly_special, seed) for seed in range(4)
}


@pytest.mark.slow
@pytest.mark.parametrize(("extras", "seed"), MIXES.values(), ids=MIXES)
def test_it_gives_the_tokens_of_the_synchronous_path(sampler_of, monkeypatch, extras, seed):
    decoder = random_decoder()
    ahead = calls_of(monkeypatch)
    found = []
    for kind in (PlainRunner, CudaRunner):
        sampler = sampler_of(kind, decoder, slots=5, max_context=256, cache_bytes=CACHE_BYTES)
        rng = np.random.default_rng(seed)
        turns = [turn(number, **extras(number, rng)) for number in range(14)]
        found.append(asyncio.run(play(sampler, turns)))
        sampler.close()
    for (mine, likeliest), (theirs, expected) in zip(*found, strict=True):
        assert mine.token_ids == theirs.token_ids
        assert mine.finish_reason == theirs.finish_reason
        np.testing.assert_allclose(
            mine.logprobs, theirs.logprobs, rtol=0, atol=logprob_tolerance(CONFIG, context=1024)
        )
        # Turns that ask for none may have empty rows.
        assert [[one for one, _ in row] for row in likeliest if row] == [
            [one for one, _ in row] for row in expected if row
        ]
    assert max(ahead) > 1


@pytest.mark.slow
def test_weights_that_change_in_flight_take_over_where_the_swap_says(sampler_of):
    decoder = random_decoder()
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
    reference = sampler_of(PlainRunner, random_decoder(), slots=2, max_context=1024)
    before = asyncio.run(reference.sample([1, 2, 3], params, frozenset()))
    reference.close()
    assert found.token_ids[:place] == before.token_ids[:place]
    assert found.logprobs[place:] != before.logprobs[place:]


def test_a_caller_that_waits_ends_a_call_early(sampler_of, monkeypatch):
    sampler = sampler_of(CudaRunner, random_decoder(), slots=2, max_context=512)
    calls = calls_of(monkeypatch)
    sampler._runner.interrupted = lambda: len(calls) == 2
    params = SamplingParams(max_tokens=40, seed=1)
    asyncio.run(sampler.sample([1, 2, 3], params, frozenset()))
    sampler.close()
    assert calls[0] > 1
    assert calls[1] == 1


@pytest.mark.parametrize(("sequences", "steps"), [(16, 2), (32, 2 + HELD_STEPS)])
def test_an_arrival_ends_the_call_of_few_sequences_and_waits_a_few_steps_beside_many(
    sampler_of, monkeypatch, sequences, steps
):
    sampler = sampler_of(CudaRunner, random_decoder(), slots=48, max_context=128)
    calls, original, launches, ended = calls_of(monkeypatch), DecodeGraphs._launch, [], []

    def submit(number):
        params = SamplingParams(max_tokens=16, seed=number)
        made = Turn(prompt=[number + 1, 2, 3], params=params, stop_ids=frozenset())
        sampler.submit(made, lambda: ended.append(number))

    def launch(graphs, size, kind):
        launches.append(kind)
        if len(launches) == 2:
            submit(sequences)
        return original(graphs, size, kind)

    monkeypatch.setattr(DecodeGraphs, "_launch", launch)
    with sampler.exclusive():  # All are admitted together.
        for number in range(sequences):
            submit(number)
    asyncio.run(until(lambda: len(ended) == sequences + 1))
    sampler.close()
    assert calls[0] == steps


class Launches:
    """The steps that were launched, and how many were known to the host when a caller heard of a token."""

    def __init__(self, monkeypatch):
        self.count = 0
        original = DecodeGraphs._launch

        def launch(graphs, size, kind):
            self.count += kind != "hidden"
            return original(graphs, size, kind)

        monkeypatch.setattr(DecodeGraphs, "_launch", launch)


def test_a_streams_next_step_is_launched_before_its_token_is_heard(sampler_of, monkeypatch):
    launches, heard = Launches(monkeypatch), []
    sampler = sampler_of(CudaRunner, random_decoder(), slots=2, max_context=512)
    params = SamplingParams(max_tokens=12, seed=1)
    made = Turn(prompt=[1, 2, 3], params=params, stop_ids=frozenset(), followed=True)

    def submit(listener):
        def hear():
            heard.append((len(request.token_ids), launches.count))
            listener()

        request = sampler.submit(made, hear)
        return request

    asyncio.run(wait_for_turn(submit))
    sampler.close()
    # The prompt's pass samples the first token; of the last one no step is launched.
    assert heard == [(1, 0), *((count, min(count, 11)) for count in range(2, 13))]


@pytest.mark.slow
def test_a_stop_wastes_one_step_whose_pages_and_numbers_harm_nobody(sampler_of, monkeypatch):
    decoder, found = random_decoder(), []
    launches = Launches(monkeypatch)
    for kind in (PlainRunner, CudaRunner):
        sampler = sampler_of(kind, decoder, slots=2, max_context=256, cache_bytes=CACHE_BYTES)
        # The wasted token is the first of a page.
        prompt = [number % CONFIG.vocab_size for number in range(65)]
        made = Turn(
            prompt=prompt,
            params=SamplingParams(seed=3),
            stop_ids=frozenset(),
            stopped=lambda ids: len(ids) == 64,
        )
        first = asyncio.run(wait_for_turn(partial(sampler.submit, made)))
        launched = launches.count
        ids = [*made.prompt, *first.token_ids, 5]
        after = asyncio.run(sampler.sample(ids, SamplingParams(max_tokens=70, seed=4), frozenset()))
        found.append((first, after))
        sampler.close()
    assert launched == 64  # 63 tokens after the prompt's own, and the wasted one.
    for mine, theirs in zip(*found, strict=True):
        assert mine.token_ids == theirs.token_ids
        assert mine.cached_tokens == theirs.cached_tokens
        np.testing.assert_allclose(
            mine.logprobs, theirs.logprobs, rtol=0, atol=logprob_tolerance(CONFIG, context=1024)
        )
    assert found[1][0].finish_reason == "stop"
    assert found[1][1].cached_tokens == 128


def test_pages_are_free_only_after_the_step_that_still_writes_to_them(sampler_of):
    sampler = sampler_of(CudaRunner, random_decoder(), slots=2, max_context=512)
    held = []

    def submit(listener):
        def hear():
            held.append((request.outcome is not None, sampler.prefix_cache.pages.available))
            listener()

        params = SamplingParams(seed=3)
        request = sampler.submit(
            Turn(
                prompt=[1, 2, 3],
                params=params,
                stop_ids=frozenset(),
                stopped=lambda ids: len(ids) == 9,
            ),
            hear,
        )
        return request

    everything = sampler.prefix_cache.pages.available
    asyncio.run(wait_for_turn(submit))
    sampler.close()
    assert held == [(True, everything - 1)]
    assert sampler.prefix_cache.pages.available == everything


def test_a_failure_after_an_end_does_not_undo_it(sampler_of, monkeypatch):
    sampler = sampler_of(CudaRunner, random_decoder(), slots=2, max_context=256)
    original = DecodeGraphs.sample

    def sample(*args):
        yield from original(*args)
        raise RuntimeError("The device is gone.")

    monkeypatch.setattr(DecodeGraphs, "sample", sample)

    async def play():
        short = sampler.sample([1, 2], SamplingParams(max_tokens=4, seed=1), frozenset())
        long = sampler.sample([3, 4], SamplingParams(max_tokens=200, seed=1), frozenset())
        return await asyncio.gather(short, long, return_exceptions=True)

    done, failed = asyncio.run(play())
    sampler.close()
    assert len(done.token_ids) == 4
    assert isinstance(failed, InfrastructureFault)
