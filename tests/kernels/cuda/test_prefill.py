"""Prompts on a GPU's path: one packed pass a step, decoding held up for a set time at most, nothing recorded meanwhile."""

import asyncio
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from tests.engine.random_decoder import CONFIG, random_decoder
from tests.engine.rounding import logprob_tolerance

from hud.engine.sample.plain_runner import PlainRunner
from hud.engine.sample.request import Turn, wait_for_turn
from hud.engine.sample.scheduler import PASS_TOKENS
from hud.errors import UsageError
from hud.settings import load
from hud.trace import SamplingParams
from hud_kernels.cuda import runner as cuda_runner
from hud_kernels.cuda.decode_step import KINDS
from hud_kernels.cuda.prefill.budget import FIRST_TOKENS, LEAST_TOKENS, PrefillBudget
from hud_kernels.cuda.runner import CudaRunner

MOST = 3
"""Sequences of a sampler; `batch_sizes` gives 1, 2 and 3."""
KEEP = frozenset()


class FakeClock:
    """A device on which time passes only where a pass says so; `behind` marks are not reached yet."""

    def __init__(self):
        self.now = 0.0
        self.behind = False

    def mark(self):
        return self.now

    def seconds(self, begin, end):
        return None if self.behind else end - begin


class Passes:
    """The passes of a runner: (tokens of each row, seconds, whether others decode), by a cost of each pass and token."""

    def __init__(self, monkeypatch, *, fixed, each):
        self.found = []
        self.clock = FakeClock()
        self.sampler = None
        original = CudaRunner.last_hidden

        def last_hidden(runner, ids, tables, starts):
            counts = [len(row) for row in ids]
            if max(counts) > 1:
                seconds = fixed + each * sum(counts)
                self.clock.now += seconds
                self.found.append((counts, seconds, self.sampler.scheduler.decoding))
            return original(runner, ids, tables, starts)

        monkeypatch.setattr(CudaRunner, "last_hidden", last_hidden)
        monkeypatch.setattr(cuda_runner, "device_clock", lambda _: self.clock)


def prompt_of(length, seed=0):
    return np.random.default_rng(seed).integers(0, CONFIG.vocab_size, length).tolist()


async def beside_decoding(sampler, prompts, params):
    """Sample the prompts once another sequence decodes; that one ends last."""
    begun, over, loop = asyncio.Event(), [], asyncio.get_running_loop()

    def stopped(ids):
        loop.call_soon_threadsafe(begun.set)
        return bool(over)

    first = Turn(prompt=[1, 2, 3], params=SamplingParams(seed=5), stop_ids=KEEP, stopped=stopped)
    going = asyncio.ensure_future(wait_for_turn(lambda tell: sampler.submit(first, tell)))
    await begun.wait()
    turns = await asyncio.gather(*(sampler.sample(one, params, KEEP) for one in prompts))
    over.append(True)
    await going
    return turns


@pytest.mark.slow
def test_a_long_prompt_holds_decoding_up_for_the_budget_at_most(sampler_of, monkeypatch):
    monkeypatch.setenv("HUD_PREFILL_MS", "20")
    passes = Passes(monkeypatch, fixed=0.004, each=20e-6)
    sampler = sampler_of(CudaRunner, random_decoder(), slots=MOST, max_context=4096)
    passes.sampler = sampler
    params = SamplingParams(max_tokens=3, seed=1)
    asyncio.run(beside_decoding(sampler, [prompt_of(4000)], params))
    held_up = [(sum(counts), seconds) for counts, seconds, decoding in passes.found if decoding]
    sampler.close()
    assert sum(count for count, _ in held_up) == pytest.approx(4000, abs=1)
    assert max(seconds for _, seconds in held_up) <= 0.020
    # Most of the budget is used, once a token's time is known.
    assert max(seconds for _, seconds in held_up) > 0.015


@pytest.mark.slow
def test_nothing_binds_while_no_sequence_decodes(sampler_of, monkeypatch):
    monkeypatch.setenv("HUD_PREFILL_MS", "1")
    passes = Passes(monkeypatch, fixed=0.004, each=20e-6)
    sampler = sampler_of(CudaRunner, random_decoder(), slots=MOST, max_context=4096)
    passes.sampler = sampler
    asyncio.run(sampler.sample(prompt_of(4000), SamplingParams(max_tokens=2, seed=1), KEEP))
    sampler.close()
    assert [counts for counts, *_ in passes.found] == [[4000]]


@pytest.mark.slow
def test_chunks_of_any_lengths_are_one_pass_with_the_tokens_of_the_reference(
    sampler_of, monkeypatch
):
    decoder = random_decoder()
    prompts = [prompt_of(length, seed=length) for length in (700, 20, 130, 5)]
    params, found = SamplingParams(max_tokens=8, seed=2), []
    passes = Passes(monkeypatch, fixed=0.0, each=1e-9)
    for kind in (PlainRunner, CudaRunner):
        sampler = sampler_of(kind, decoder, slots=6, max_context=1024)
        passes.sampler = sampler

        async def play(sampler=sampler):
            with paused(sampler):  # All are admitted at once.
                turns = [
                    asyncio.ensure_future(sampler.sample(one, params, KEEP)) for one in prompts
                ]
                await asyncio.sleep(0)
            return await asyncio.gather(*turns)

        found.append(asyncio.run(play()))
        sampler.close()
    assert [sorted(counts) for counts, *_ in passes.found] == [[5, 20, 130, 700]]
    for mine, theirs in zip(*found, strict=True):
        assert mine.token_ids == theirs.token_ids
        np.testing.assert_allclose(
            mine.logprobs, theirs.logprobs, rtol=0, atol=logprob_tolerance(CONFIG, context=1024)
        )


@contextmanager
def paused(sampler):
    with sampler.exclusive(in_flight=True):
        yield


KINDS_OF_TURNS = [{}, {"top_p": 0.8}, {"top_k": 3}, {"temperature": 0.0}]


@pytest.mark.slow
def test_no_step_is_recorded_while_serving(sampler_of):
    decoder = random_decoder()
    sampler = sampler_of(CudaRunner, decoder, slots=MOST, max_context=512)
    graphs = sampler._runner.graphs
    seen = []

    def stopped(ids):
        seen.append(graphs.recordings)
        return False

    async def play():
        turns = []
        for number in range(12):
            params = SamplingParams(
                max_tokens=4 + 5 * (number % 4), seed=number, **KINDS_OF_TURNS[number % 4]
            )
            made = Turn(
                prompt=prompt_of(3 + 20 * number, seed=number),
                params=params,
                stop_ids=KEEP,
                stopped=stopped,
                top=number % 3,
            )
            turns.append(wait_for_turn(lambda tell, made=made: sampler.submit(made, tell)))
        await asyncio.gather(*turns)

    asyncio.run(play())
    everything = len(KINDS) * MOST
    assert set(seen) == {everything}
    assert graphs.recordings == everything

    # Weights in new memory, in the middle of a sequence: recorded once nothing is sampled.
    async def replaced():
        swapped = []

        def exchange(ids):
            if len(ids) == 5 and not swapped:
                swapped.append(True)
                loop.call_soon_threadsafe(ready.set)
            seen.append(graphs.recordings)
            return bool(done) and len(ids) > done[0] + 5

        loop, ready, done = asyncio.get_running_loop(), asyncio.Event(), []
        made = Turn(prompt=[1, 2], params=SamplingParams(seed=1), stop_ids=KEEP, stopped=exchange)
        going = asyncio.ensure_future(wait_for_turn(lambda tell: sampler.submit(made, tell)))
        await ready.wait()

        def swap():
            with sampler.exclusive(in_flight=True):
                weight = decoder.model.norm.weight
                weight.data = weight.data.clone()
                done.append(len(sampler.active[0].token_ids))

        await asyncio.to_thread(swap)
        await going
        assert set(seen) == {everything}
        await sampler.sample([3, 4], SamplingParams(max_tokens=2, seed=1), KEEP)

    asyncio.run(replaced())
    sampler.close()
    assert graphs.recordings == 2 * everything


def test_recording_stops_for_a_swap_and_goes_on_after_it(sampler_of, monkeypatch):
    shown = []
    monkeypatch.setattr(cuda_runner, "show_recording", lambda *progress: shown.append(progress))
    sampler = sampler_of(CudaRunner, random_decoder(), slots=MOST, max_context=512)
    runner, everything = sampler._runner, len(KINDS) * MOST
    runner.interrupted = lambda: len(shown) == 4
    with torch.inference_mode():
        assert not runner.warm_up()
        assert runner.graphs.recordings == 4
        runner.interrupted = lambda: False
        assert runner.warm_up()
        assert runner.warm_up()
    assert shown == [(done, everything) for done in range(1, everything + 1)]
    assert runner.graphs.recordings == everything


def budget(seconds=0.02):
    clock = FakeClock()
    return PrefillBudget(seconds, clock), clock


def measure(made, clock, count, seconds):
    with made.measured(count):
        clock.now += seconds


def test_the_allowance_follows_the_measured_time_of_a_token():
    made, clock = budget()
    assert made.tokens() == FIRST_TOKENS
    allowed = []
    for _ in range(20):
        count = made.tokens()
        measure(made, clock, count, 0.002 + count * 1e-5)
        allowed.append(made.tokens())
    assert allowed == sorted(allowed)
    assert 1500 < allowed[-1] * 1.0 <= 1800
    # Tokens become slower: at once fewer. They become faster: step by step more.
    measure(made, clock, 1000, 0.1)
    slowed = made.tokens()
    assert slowed == pytest.approx(180, abs=2)
    measure(made, clock, slowed, slowed * 1e-5)
    assert slowed < made.tokens() < 2 * slowed


def test_prompts_get_on_whatever_the_budget_and_never_over_a_pass():
    made, clock = budget()
    measure(made, clock, 100, 60.0)
    assert made.tokens() == LEAST_TOKENS
    made, clock = budget()
    for _ in range(9):
        measure(made, clock, 100, 0.0)
    assert made.tokens() == PASS_TOKENS


def test_passes_without_decoding_and_those_that_are_not_over_teach_nothing():
    made, clock = budget()
    measure(made, clock, PASS_TOKENS, 0.001)
    assert made.tokens() == FIRST_TOKENS
    clock.behind = True
    measure(made, clock, 100, 1.0)
    assert made.tokens() == FIRST_TOKENS
    clock.behind = False
    assert made.tokens() == LEAST_TOKENS


@pytest.mark.parametrize("value", ["0", "-3", "soon", "inf", "nan"])
def test_a_budget_that_is_no_time_is_refused(monkeypatch, value):
    monkeypatch.setenv("HUD_PREFILL_MS", value)
    with pytest.raises(UsageError, match="HUD_PREFILL_MS"):
        load()
