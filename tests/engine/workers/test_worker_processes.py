"""Small policies sample and learn in several processes: the same tokens, gradients and versions, and nobody notices."""

import asyncio
import os
import signal

import numpy as np
import pytest
import torch
from tests.engine.learn.small_decoder import random_datum
from tests.engine.tiny_policy import lesson, tiny_policy
from tests.engine.waiting import until

from hud.engine.cpu_threads import in_parallel, sampling_processes
from hud.engine.learn.local_trainer import LocalTrainer
from hud.engine.lora import LoraConfig, attach, lora_parameters
from hud.engine.sample.request import Turn
from hud.engine.sample.sampler import Sampler
from hud.engine.workers import sampler_pool as samplers
from hud.engine.workers import worker_handle as side_process
from hud.engine.workers.shared_weights import SharedWeights, decoder_over
from hud.errors import InfrastructureFault, UsageError
from hud.trace import SamplingParams

GREEDY = SamplingParams(max_tokens=24, temperature=0)
PROMPTS = [[5, 6, 7 + number] for number in range(8)]


@pytest.fixture
def policy(monkeypatch):
    """A policy that has two other processes to sample in as soon as it samples at all."""
    monkeypatch.setattr(samplers, "sampling_processes", lambda parameters: 2)
    monkeypatch.setattr(samplers, "BUSY_STEPS", 0)
    monkeypatch.setattr(samplers, "BUSY_SEQUENCES", 0)
    made = tiny_policy()
    made.chat.stop_ids = frozenset()  # Turns end at their length.
    yield made
    made.close()


async def spread(policy):
    """Have the other processes started, and return them."""
    await policy.sample([5, 6], SamplingParams(max_tokens=1))
    await until(lambda: len(policy._samplers._sides) == 2)
    sides = policy._samplers._sides
    for side in sides:
        assert await asyncio.to_thread(side.ready.wait, 60)
    return sides


async def drawn(policy, prompts=PROMPTS, params=GREEDY):
    return await asyncio.gather(*(policy.sample(prompt, params) for prompt in prompts))


def spoil(policy):
    changing = lora_parameters(policy.decoder) or dict(policy.decoder.named_parameters())
    with torch.no_grad():
        for parameter in changing.values():
            parameter += 0.3 * torch.ones_like(parameter).cumsum(-1).sin()


def submitted(policy, prompt, params=GREEDY, **options):
    """Submit a turn and return it."""
    asked = Turn(prompt=prompt, params=params, stop_ids=frozenset(), **options)
    return policy._samplers.submit(asked, lambda: None)


def place(request):
    """Which of the other processes a turn went to."""
    assert request.cancel is not None
    return request.cancel.func.__self__


@pytest.mark.slow
async def test_turns_are_shared_out_and_the_same_tokens_are_drawn(policy):
    alone = await drawn(policy)
    sides = await spread(policy)
    requests = [submitted(policy, prompt) for prompt in PROMPTS]
    places = [place(request) for request in requests]
    assert [places.count(side) for side in sides] == [len(PROMPTS) / 2] * 2
    together = await drawn(policy)
    assert [one.token_ids for one in together] == [one.token_ids for one in alone]
    for one, other in zip(together, alone, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


@pytest.mark.slow
async def test_half_of_the_processes_draw_while_training_passes_are_computed(policy):
    first, second = await spread(policy)
    passes = in_parallel([lambda: None, lambda: None])
    next(passes)  # The second is still to be asked for.
    assert {place(submitted(policy, prompt)) for prompt in PROMPTS} == {first}
    assert policy.beside() == [second]
    passes.close()


@pytest.mark.slow
async def test_a_seed_draws_the_same_in_any_process(policy):
    params = SamplingParams(max_tokens=24, seed=3)
    alone = await policy.sample([5, 6, 7], params)
    await spread(policy)
    again = await drawn(policy, [[5, 6, 7]] * 4, params)
    assert [one.token_ids for one in again] == [alone.token_ids] * 4


@pytest.mark.slow
@pytest.mark.parametrize("lora", [False, True])
async def test_weights_that_change_here_are_sampled_from_there(policy, lora):
    if lora:
        attach(policy.decoder, LoraConfig(rank=4, alpha=8))
    await spread(policy)
    before = await drawn(policy)

    def change():
        with policy.exclusive():
            spoil(policy)
            policy.checkpoint = "new"

    await asyncio.to_thread(change)
    after = await drawn(policy)
    assert {one.version for one in after} == {"new"}
    assert all(a.token_ids != b.token_ids for a, b in zip(after, before, strict=True))
    sampler = Sampler(policy.decoder)
    alone = [await sampler.sample(prompt, GREEDY, frozenset()) for prompt in PROMPTS]
    sampler.close()
    assert [one.token_ids for one in after] == [one.token_ids for one in alone]


@pytest.mark.slow
@pytest.mark.parametrize("lora", [None, LoraConfig(rank=4, alpha=8)])
async def test_what_a_trainer_learns_is_sampled_from_whoever_was_there_first(policy, lora):
    trainer = LocalTrainer(policy.decoder, lora=lora)
    await spread(policy)
    before = await drawn(policy)

    def learn():
        trainer.forward_backward([lesson([5, 6, 7, 8, 9, 10], sampled=3)], "cross_entropy")
        with policy.exclusive():
            measured = trainer.optim_step(0.1)
            policy.checkpoint = "learned"
        return measured

    for _ in range(2):
        assert (await asyncio.to_thread(learn))["update_norm:mean"] > 0
    after = await drawn(policy)
    assert all(a.token_ids != b.token_ids for a, b in zip(after, before, strict=True))
    sampler = Sampler(policy.decoder)
    alone = [await sampler.sample(prompt, GREEDY, frozenset()) for prompt in PROMPTS]
    sampler.close()
    assert [one.token_ids for one in after] == [one.token_ids for one in alone]


@pytest.mark.slow
async def test_a_swap_in_flight_is_told_of_everywhere(policy):
    await spread(policy)
    long = SamplingParams(max_tokens=480, temperature=0)
    # As many as there is room for, so that they take a while.
    turns = [submitted(policy, [5, 6, 7 + row], long, followed=True) for row in range(128)]
    await until(lambda: any(len(one.token_ids) >= 5 for one in turns))

    def change():
        with policy.exclusive(in_flight=True):
            spoil(policy)
            policy.checkpoint = "new"

    await asyncio.to_thread(change)
    await until(lambda: all(one.outcome for one in turns))
    told = [one for one in turns if one.outcome.swaps]  # Others had ended or not begun.
    assert {place(one) for one in told} == set(policy._samplers._sides)
    for one in told:
        assert one.outcome.version is None
        ((where, version),) = one.outcome.swaps
        assert version == "new"
        assert 0 < where < 480


@pytest.mark.slow
async def test_what_needs_this_process_is_drawn_here(policy):
    await spread(policy)
    request = submitted(policy, [5, 6, 7], stopped=lambda ids: len(ids) == 3)
    assert request.cancel is None
    await until(lambda: request.outcome)
    assert len(request.token_ids) == 3


@pytest.mark.slow
async def test_a_process_that_is_killed_takes_only_its_turns_with_it(policy):
    side, _ = await spread(policy)
    turns = [
        asyncio.create_task(policy.sample(prompt, SamplingParams(max_tokens=480)))
        for prompt in PROMPTS
    ]
    await until(lambda: side.load >= 2)
    os.kill(side._child.pid, signal.SIGKILL)
    ended = await asyncio.gather(*turns, return_exceptions=True)
    lost = [one for one in ended if isinstance(one, InfrastructureFault)]
    assert 0 < len(lost) <= len(PROMPTS) / 2
    assert all(len(one.token_ids) == 480 for one in ended if one not in lost)
    assert len((await policy.sample([5, 6, 7], GREEDY)).token_ids) == 24
    assert side not in await spread(policy)


@pytest.mark.slow
async def test_an_adapter_that_is_put_on_later_is_sampled_with(policy):
    sides = await spread(policy)

    def change():
        with policy.exclusive():
            attach(policy.decoder, LoraConfig(rank=4, alpha=8))
            spoil(policy)

    await asyncio.to_thread(change)
    assert not any(side.alive for side in sides)
    alone = await drawn(policy)
    await spread(policy)
    assert [one.token_ids for one in await drawn(policy)] == [one.token_ids for one in alone]


@pytest.mark.slow
async def test_the_next_turn_goes_where_the_conversation_is(policy):
    await spread(policy)
    openings = [[number] * 64 for number in range(20, 28)]
    first = [submitted(policy, prompt) for prompt in openings]
    await until(lambda: all(one.outcome for one in first))
    following = [submitted(policy, [*one.prompt, *one.token_ids, 5, 6, 7]) for one in first]
    await until(lambda: all(one.outcome for one in following))
    for one, before in zip(following, first, strict=True):
        assert place(one) is place(before)
        assert one.cached >= 64 + 23


@pytest.mark.slow
async def test_a_turn_that_is_given_up_ends_there(policy):
    sides = await spread(policy)
    requests = [submitted(policy, prompt, SamplingParams(max_tokens=480)) for prompt in PROMPTS]
    for one in requests:
        one.abandon()
    assert [side.load for side in sides] == [0, 0]
    assert all(one.outcome is None for one in requests)
    await drawn(policy)


@pytest.mark.slow
async def test_a_long_prompt_stays_in_its_place_among_short_ones(policy, monkeypatch):
    monkeypatch.setattr(side_process, "SHORT_TOKENS", 32)
    await spread(policy)
    prompts = [[5 + row] * (200 if row % 3 else 4) for row in range(24)]
    alone = Sampler(policy.decoder)
    wanted = [await alone.sample(prompt, GREEDY, frozenset()) for prompt in prompts]
    alone.close()
    found = await drawn(policy, prompts)
    assert [one.token_ids for one in found] == [one.token_ids for one in wanted]


@pytest.mark.parametrize("begins", [0, 1, 3, 8])
async def test_weights_are_shared_wherever_they_begin(policy, begins):
    weight = policy.decoder.model.norm.weight
    memory = bytearray(weight.nbytes + 64)
    odd = torch.frombuffer(memory, dtype=torch.float32, offset=begins, count=weight.numel())
    weight.data = odd.copy_(
        weight.data
    )  # As a file's weights lie in memory behind a header of any length.
    shared = SharedWeights(policy.decoder)
    there = dict(decoder_over(shared.plan, shared.descriptor).named_parameters())
    shared.close()
    for name, parameter in policy.decoder.named_parameters():
        assert torch.equal(there[name], parameter)
        assert there[name].data_ptr() % 64 == parameter.data_ptr() % 64 // 4 * 4, "to round alike"


def batch_of(vocab=60):
    rng = np.random.default_rng(0)
    return [random_datum(rng, vocab=vocab, length=80, traj_idx=number) for number in range(24)]


def trainer_of(policy, **options):
    trainer = LocalTrainer(policy.decoder, **options)
    trainer._at_once = 3  # Whatever this machine has.
    return trainer


def told(trainer, **options):
    """Return a batch's gradients, its loss and its logprobs."""
    metrics = trainer.forward_backward(batch_of(), "ppo", {"epsilon": 0.2}, **options)
    assert metrics["passes:sum"] == 3
    found = trainer.gradients(), metrics["loss:sum"], trainer.last_logprobs
    trainer.zero_grad()
    return found


def same(one, other):
    """Whether the gradients, the losses and the logprobs are the same bits."""
    return (
        all(torch.equal(gradient, other[0][name]) for name, gradient in one[0].items())
        and one[1] == other[1]
        and all(map(np.array_equal, one[2], other[2]))
    )


@pytest.fixture
def answered(monkeypatch):
    """Who computed each pass that was computed beside, and whether its layers were to be recomputed."""
    found = []
    compute = side_process.WorkerProcess.compute

    def counting(side, *arguments, checkpointed):
        answer = compute(side, *arguments, checkpointed=checkpointed)
        found.append((side, checkpointed))
        return answer

    monkeypatch.setattr(side_process.WorkerProcess, "compute", counting)
    return found


@pytest.mark.slow
async def test_passes_that_are_computed_beside_find_the_same_bits(policy, answered):
    alone, beside = trainer_of(policy), trainer_of(policy, beside=policy.beside)
    here = await asyncio.to_thread(told, beside)
    assert not answered, "there was nobody yet"
    sides = await spread(policy)
    there = await asyncio.to_thread(told, beside)
    assert len(answered) == 3
    assert {side for side, _ in answered} == set(sides)
    assert same(there, here)
    logprobs = await asyncio.to_thread(beside.forward, batch_of())
    assert len(answered) == 6
    assert all(map(np.array_equal, logprobs, alone.forward(batch_of())))


@pytest.mark.slow
async def test_layers_are_recomputed_beside_too(policy, answered):
    await spread(policy)
    beside = trainer_of(policy, beside=policy.beside)
    kept = await asyncio.to_thread(told, beside)
    policy.decoder.checkpointed = True
    assert same(await asyncio.to_thread(told, beside), kept)
    assert [checkpointed for _, checkpointed in answered] == [False] * 3 + [True] * 3


@pytest.mark.slow
async def test_passes_beside_are_of_the_weights_as_they_are(policy, answered):
    await spread(policy)
    alone, beside = trainer_of(policy), trainer_of(policy, beside=policy.beside)
    before = await asyncio.to_thread(told, beside)

    def change():
        with policy.exclusive():
            spoil(policy)

    await asyncio.to_thread(change)
    after = await asyncio.to_thread(told, beside)
    assert len(answered) == 6
    assert not same(after, before)
    assert same(after, await asyncio.to_thread(told, alone))


@pytest.mark.slow
async def test_a_pass_whose_process_is_killed_is_computed_here(policy, answered):
    sides = await spread(policy)
    alone, beside = trainer_of(policy), trainer_of(policy, beside=lambda: sides)
    os.kill(sides[0]._child.pid, signal.SIGSTOP)
    learning = asyncio.create_task(asyncio.to_thread(told, beside))
    await until(lambda: sides[0]._passed)
    os.kill(sides[0]._child.pid, signal.SIGKILL)
    assert same(await learning, await asyncio.to_thread(told, alone))
    assert sides[0] not in [side for side, _ in answered]
    assert not policy.beside(), "the others are too few until it has been started again"


@pytest.mark.slow
async def test_a_pass_that_fails_beside_says_what_it_would_here(policy, answered):
    sides = await spread(policy)
    beside = trainer_of(policy, beside=policy.beside)
    with pytest.raises(IndexError):
        await asyncio.to_thread(beside.forward, batch_of(vocab=10**6))
    assert not answered
    await asyncio.to_thread(told, beside)
    assert {side for side, _ in answered} == set(sides), "they go on"


def test_the_environment_says_how_many_processes_there_are(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert sampling_processes(1_000_000) == 1
    monkeypatch.setenv("HUD_SAMPLERS", "3")
    assert sampling_processes(1_000_000) == 3
    assert sampling_processes(1_000_000_000) == 1, "each process would read all of them"
    monkeypatch.setenv("HUD_SAMPLERS", "many")
    with pytest.raises(UsageError, match="HUD_SAMPLERS is 'many'; it is a number of processes"):
        sampling_processes(1_000_000)
