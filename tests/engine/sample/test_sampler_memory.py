"""The sampler's memory: a fixed budget, however many and however long the sequences."""

import asyncio
import threading
import time
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.random_decoder import forward_logprobs, random_decoder

from hud.engine.sample import sampler as sampler_module
from hud.engine.sample.kv_cache import PAGE_TOKENS, bytes_for
from hud.engine.sample.request import Turn, wait_for_turn
from hud.engine.sample.sampler import Sampler
from hud.errors import ContextOverflow, UsageError
from hud.trace import SamplingParams


def prompts(count, length=100, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randint(0, 64, (length + 7 * number,), generator=generator).tolist()
        for number in range(count)
    ]


def small(decoder, pages, **options):
    """A sampler of so many small pages."""
    budget = bytes_for(decoder.config, pages + 1, PAGE_TOKENS, decoder.dtype)
    return Sampler(decoder, cache_bytes=budget, **options)


@pytest.fixture(scope="module")
def decoder():
    return random_decoder()


@pytest.fixture
def opened():
    """Samplers to close at the end."""
    samplers = []
    yield samplers.append
    for sampler in samplers:
        sampler.close()


async def draw_all(sampler, wanted, tokens=150, temperature=1.0):
    turns = (
        sampler.sample(
            prompt,
            SamplingParams(max_tokens=tokens, seed=seed, temperature=temperature),
            frozenset(),
        )
        for seed, prompt in enumerate(wanted)
    )
    return await asyncio.gather(*turns)


def followed(sampler, prompt, seen, *, tokens=150, seed=0):
    """Begin a turn; `seen` gets its tokens after each of them, in the sampler's thread."""
    asked = Turn(
        prompt=prompt,
        params=SamplingParams(max_tokens=tokens, seed=seed),
        stop_ids=frozenset(),
        stopped=lambda ids: bool(seen(ids)),
    )
    return wait_for_turn(lambda listener: sampler.submit(asked, listener))


def assert_alike(some, others):
    for one, other in zip(some, others, strict=True):
        assert one.token_ids == other.token_ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


@pytest.mark.parametrize("head_dim", [8, 16])  # 8 is computed by the reference runner.
async def test_logprobs_over_pages_are_those_of_a_forward_pass(head_dim, opened):
    decoder = random_decoder(head_dim=head_dim)
    paged = small(decoder, 40, slots=8)
    opened(paged)
    wanted = prompts(6, length=40)
    for prompt, drawn in zip(wanted, await draw_all(paged, wanted, tokens=90), strict=True):
        expected = forward_logprobs(decoder, prompt, drawn.token_ids)
        assert drawn.logprobs == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow
async def test_preempted_sequences_draw_what_they_would_have_drawn(decoder, opened):
    roomy, tight = Sampler(decoder, slots=12), small(decoder, 14, slots=12)
    opened(roomy), opened(tight)
    wanted = prompts(12)
    for temperature in (1.0, 0.0):
        expected = await draw_all(roomy, wanted, temperature=temperature)
        assert_alike(await draw_all(tight, wanted, temperature=temperature), expected)
    assert tight.scheduler.preemptions > 0
    assert roomy.scheduler.preemptions == 0


@pytest.mark.slow
async def test_many_long_sequences_never_take_more_than_the_budget(decoder, opened):
    sampler = small(decoder, 24, slots=16)
    opened(sampler)
    size = sampler.cache.nbytes
    places = sampler.cache.keys.data_ptr(), sampler.cache.values.data_ptr()
    drawn = await draw_all(sampler, prompts(24), tokens=250)
    assert [len(one.token_ids) for one in drawn] == [250] * 24
    assert sampler.cache.nbytes == size
    assert (sampler.cache.keys.data_ptr(), sampler.cache.values.data_ptr()) == places
    assert sampler.prefix_cache.pages.most_in_use * sampler.cache.page_bytes <= size
    assert sampler.scheduler.preemptions > 0
    sampler.prefix_cache.forget()
    assert sampler.prefix_cache.pages.in_use == 0


async def test_a_sequence_that_needs_every_page_gets_it(decoder, opened):
    sampler = small(decoder, 10, slots=4)
    opened(sampler)
    assert sampler.max_context == 640
    wanted = prompts(3, length=600)
    drawn = await draw_all(sampler, wanted, tokens=10**6)
    assert [
        len(prompt) + len(one.token_ids) for prompt, one in zip(wanted, drawn, strict=True)
    ] == [640] * 3


async def test_a_prompt_that_the_budget_cannot_hold_is_refused_and_told_why(decoder, opened):
    sampler = small(decoder, 10)
    opened(sampler)
    with pytest.raises(
        ContextOverflow, match=r"641 tokens; the key-value cache of \d+ MiB holds 640"
    ):
        await draw_all(sampler, prompts(1, length=641))


def test_a_budget_that_cannot_hold_what_was_asked_for_is_refused(decoder):
    with pytest.raises(UsageError, match="One conversation of 1,000 tokens needs"):
        small(decoder, 10, max_context=1000)
    with pytest.raises(UsageError, match="for it. Lower --max-context, raise --kv-cache"):
        Sampler(decoder, cache_bytes=1000)


async def test_a_long_prompt_does_not_stall_those_who_draw(decoder, opened, monkeypatch):
    monkeypatch.setattr(sampler_module, "PREFILL_TOKENS_SMALL", 32)
    sampler = Sampler(decoder, slots=4)
    opened(sampler)
    computed, long = [], []
    loop = asyncio.get_running_loop()

    def seen(ids):
        computed.append(sampler.scheduler.prefilled)
        if len(ids) == 5:
            turn = sampler.sample(prompts(1, 900)[0], SamplingParams(max_tokens=1), frozenset())
            long.append(asyncio.run_coroutine_threadsafe(turn, loop))
            while not sampler.waiting:  # It is queued by the loop.
                pass

    drawn = await followed(sampler, prompts(1, 10)[0], seen)
    await asyncio.wrap_future(long[0])
    steps = [after - before for before, after in pairwise(computed)]
    assert max(steps) == 32
    assert sum(steps) == 900
    assert len(drawn.token_ids) == 150


async def test_twenty_turns_compute_only_what_is_new(decoder, opened):
    for sampler in (small(decoder, 60, slots=4), Sampler(decoder, slots=4)):
        opened(sampler)
        ids, new = [], 0
        for turn in range(20):
            said = prompts(1, 40, seed=turn)[0]
            ids, new = ids + said, new + len(said)
            ids += (await draw_all(sampler, [ids], tokens=12))[0].token_ids
        assert sampler.scheduler.prefilled / new <= 1.05


@pytest.mark.slow
async def test_a_group_computes_its_long_prompt_once(decoder, opened):
    prompt = prompts(1, 2000)[0]
    for sampler in (small(decoder, 70, slots=16), Sampler(decoder, slots=16)):
        opened(sampler)
        drawn = await draw_all(sampler, [prompt] * 16, tokens=20)
        assert sampler.scheduler.prefilled <= 1.1 * len(prompt)
        assert sorted(one.cached_tokens for one in drawn) == [0] + [1999] * 15
        for one in drawn:
            expected = forward_logprobs(decoder, prompt, one.token_ids)
            assert one.logprobs == pytest.approx(expected, abs=1e-4)


async def test_prompts_that_begin_alike_compute_the_beginning_once(decoder, opened):
    beginning = prompts(1, 200)[0]
    wanted = [[*beginning, *rest] for rest in prompts(6, 20, seed=1)]
    for sampler in (small(decoder, 60, slots=8), Sampler(decoder, slots=8)):
        opened(sampler)
        await draw_all(sampler, wanted, tokens=2)
        assert sampler.scheduler.prefilled == 200 + sum(len(one) - 200 for one in wanted)


async def test_a_cancelled_sequence_makes_room_before_the_next_step(decoder, opened):
    sampler = small(decoder, 10)
    opened(sampler)
    one, other = prompts(2, 500)
    steps = {}

    def given_up(ids):
        if len(ids) == 20:
            steps["given up"] = sampler.steps
            sampler.active[0].abandon()

    first = asyncio.create_task(followed(sampler, one, given_up))
    await asyncio.sleep(0)  # It is the first in the queue.
    await followed(sampler, other, lambda ids: steps.setdefault("next", sampler.steps) < 0)
    assert steps["next"] == steps["given up"] + 1
    first.cancel()


class Swap:
    """Weights that change once a sequence waits for memory."""

    def __init__(self, sampler):
        self.sampler = sampler
        self.due, self.held = threading.Event(), threading.Event()
        self.preempted = None

    def seen(self, ids):
        found = [one for one in self.sampler.active if one.slot is None and one.token_ids]
        if found and self.preempted is None:
            self.preempted = found[0]
            self.place = len(found[0].token_ids)
            self.due.set()
            self.held.wait(60)

    async def begin(self, change):
        """Let `change` begin; it comes to its turn once the step is over."""
        assert await asyncio.to_thread(self.due.wait, 60)
        changing = asyncio.create_task(asyncio.to_thread(change))
        await asyncio.to_thread(self._until_held)
        self.held.set()
        await changing

    def _until_held(self):
        while not self.sampler._pauses[True]:
            time.sleep(0.001)


def spoil(decoder):
    for parameter in decoder.parameters():
        parameter.data += 0.2 * parameter.data.new_ones(parameter.shape).cumsum(-1).sin()


async def test_weights_that_change_in_flight_compute_preempted_sequences_anew(opened):
    decoder, old = random_decoder(), random_decoder()
    sampler = small(decoder, 14, slots=12, version="old")
    opened(sampler)
    swap = Swap(sampler)

    def change():
        with sampler.exclusive(in_flight=True):
            spoil(decoder)
            sampler.set_version("new")

    wanted = prompts(12)
    turns = [
        asyncio.create_task(followed(sampler, prompt, swap.seen, seed=seed))
        for seed, prompt in enumerate(wanted)
    ]
    await swap.begin(change)
    drawn = await asyncio.gather(*turns)
    one = drawn[wanted.index(swap.preempted.prompt)]
    assert (one.version, one.swaps) == ("old", [(swap.place, "new")])
    prompt = swap.preempted.prompt
    before = forward_logprobs(old, prompt, one.token_ids)[: swap.place]
    after = forward_logprobs(decoder, prompt, one.token_ids)[swap.place :]
    assert one.logprobs == pytest.approx([*before, *after], abs=1e-4)
    assert {turn.version for turn in drawn} <= {"old", "new"}
    assert all(len(turn.token_ids) == 150 for turn in drawn)


@pytest.mark.slow
async def test_preempted_sequences_keep_their_weights_when_others_take_over(opened):
    decoder, old = random_decoder(), random_decoder()
    expected = Sampler(old, slots=12)
    sampler = small(decoder, 14, slots=12, version="old")
    successor = Sampler(decoder, slots=12, version="new")
    opened(expected), opened(sampler), opened(successor)
    swap = Swap(sampler)

    def change():
        with successor.exclusive():
            sampler.hand_over(successor, old)
            spoil(decoder)

    wanted = prompts(16)
    turns = [
        asyncio.create_task(followed(sampler, prompt, swap.seen, seed=seed))
        for seed, prompt in enumerate(wanted)
    ]
    await swap.begin(change)
    drawn = await asyncio.gather(*turns)
    kept = [number for number, one in enumerate(drawn) if one.version == "old"]
    assert wanted.index(swap.preempted.prompt) in kept
    undisturbed = await draw_all(expected, wanted)
    assert_alike([drawn[number] for number in kept], [undisturbed[number] for number in kept])
    assert all(not one.swaps for one in drawn)
    assert len(kept) < len(drawn)


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(
    pages=st.integers(8, 30),
    slots=st.integers(1, 8),
    conversations=st.lists(
        st.tuples(
            st.sampled_from([0, 20, 130]),  # tokens that it shares with others
            st.integers(1, 150),  # of its own
            st.integers(1, 120),  # drawn in each turn
            st.integers(1, 3),  # turns
            st.booleans(),  # given up in the middle
        ),
        min_size=1,
        max_size=14,
    ),
)
def test_whoever_comes_and_goes_is_drawn_from_the_right_distribution(pages, slots, conversations):
    decoder = random_decoder()
    sampler = small(decoder, pages, slots=slots)
    beginning = prompts(1, 130)[0]

    async def converse(number, shared, own, tokens, turns, leaves):
        ids = beginning[:shared] + prompts(1, own, seed=number)[0]
        for turn in range(turns):
            room = sampler.max_context - len(ids)
            if room < 1:
                return
            params = SamplingParams(max_tokens=tokens, seed=turn)
            drawing = asyncio.ensure_future(sampler.sample(ids, params, frozenset()))
            if leaves and turn == turns - 1:
                await asyncio.wait([drawing], timeout=0.02)
                drawing.cancel()
                return
            drawn = await drawing
            assert len(drawn.token_ids) == min(tokens, room)
            expected = forward_logprobs(decoder, ids, drawn.token_ids)
            assert drawn.logprobs == pytest.approx(expected, abs=1e-4)
            ids = [*ids, *drawn.token_ids, *prompts(1, 20, seed=turn)[0]]

    async def play():
        await asyncio.gather(*(converse(n, *one) for n, one in enumerate(conversations)))

    asyncio.run(play())
    with sampler.exclusive():  # Until those who were given up have gone.
        sampler.prefix_cache.forget()
        assert sampler.prefix_cache.pages.in_use == 0
    sampler.close()
