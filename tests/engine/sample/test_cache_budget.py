"""The key-value cache sizes itself: by what weights and training leave of a GPU, and by the machine's free memory on a CPU."""

import asyncio
import threading
import time

import pytest
import torch
from tests.engine.random_decoder import forward_logprobs, random_decoder

from hud.engine.sample.cache_budget import FIRST_BYTES, GPU_SHARE, CacheBudget, divided
from hud.engine.sample.kv_cache import PAGE_TOKENS, KVCache, bytes_for
from hud.engine.sample.options import slots_within
from hud.engine.sample.pages import PageGrowth, Pages
from hud.engine.sample.request import Turn, wait_for_turn
from hud.engine.sample.sampler import Sampler
from hud.errors import UsageError
from hud.processes.host_memory import HostMemory
from hud.trace import SamplingParams

MIB = 1 << 20
BAR = 0.85


class Gpu:
    """A device of so many bytes, some of which weights and training hold."""

    lazy = False

    def __init__(self, total):
        self.total, self.held = total, 0
        self.samplers = []

    def free(self):
        return self.total - self.held - sum(sampler.cache_bytes for sampler in self.samplers)


class Laptop:
    """A machine with so much free memory, which takes what is written to."""

    lazy = True

    def __init__(self, available):
        self.available = available

    def free(self):
        return self.available


class Training:
    """What a training is named by."""


@pytest.fixture(scope="module")
def decoder():
    return random_decoder()


@pytest.fixture
def opened():
    samplers = []
    yield samplers
    for sampler in samplers:
        sampler.close()


@pytest.fixture
def begun(decoder, opened):
    """Return what begins a sampler on a device."""

    def begin(device, budget, **options):
        sampler = Sampler(decoder, budget=budget, **options)
        opened.append(sampler)
        if isinstance(device, Gpu):
            device.samplers.append(sampler)
        return sampler

    return begin


def page_bytes(decoder):
    return bytes_for(decoder.config, 1, PAGE_TOKENS, decoder.dtype)


async def draw(sampler, lengths, tokens=40):
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(0, 64, (length,), generator=generator).tolist() for length in lengths]
    turns = (
        sampler.sample(prompt, SamplingParams(max_tokens=tokens, seed=seed), frozenset())
        for seed, prompt in enumerate(prompts)
    )
    return prompts, await asyncio.gather(*turns)


@pytest.mark.parametrize("held", [0, 8 * MIB, 20 * MIB])
@pytest.mark.parametrize("peak", [0, 3 * MIB, 9 * MIB])
def test_most_of_what_weights_and_the_measured_peak_leave_holds_keys_and_values(begun, held, peak):
    gpu = Gpu(40 * MIB)
    budget, training = CacheBudget(gpu), Training()
    gpu.held = held  # Weights.
    sampler = begun(gpu, budget)
    assert BAR * (40 * MIB - held) <= sampler.cache_bytes <= 40 * MIB - held
    budget.reserve(training, 12 * MIB)
    gpu.held += MIB  # States of the optimizer.
    budget.measured(training, peak)
    left = gpu.total - gpu.held - peak
    assert BAR * left <= sampler.cache_bytes <= left
    assert sampler.cache_bytes == sampler.cache.nbytes


def test_a_training_that_is_planned_leaves_the_cache_a_part_and_ends_with_its_reservation(
    begun, decoder
):
    gpu = Gpu(40 * MIB)
    budget, training = CacheBudget(gpu), Training()
    sampler = begun(gpu, budget)
    budget.reserve(training, 30 * MIB)
    assert BAR * 10 * MIB <= sampler.cache_bytes <= 40 * MIB
    del training
    budget.reserve(other := Training(), 0)
    assert sampler.cache_bytes >= BAR * 40 * MIB
    assert other


def test_a_step_that_takes_about_as_much_as_the_last_resizes_nothing(begun):
    gpu = Gpu(40 * MIB)
    budget, training = CacheBudget(gpu), Training()
    sampler = begun(gpu, budget)
    budget.measured(training, 9 * MIB)
    cache = sampler.cache
    for peak in (9.2, 8.0, 2.0):  # The most of all steps counts.
        budget.measured(training, int(peak * MIB))
        assert sampler.cache is cache
    budget.measured(training, 14 * MIB)
    assert sampler.cache is not cache


async def test_samplers_of_a_process_share_and_the_first_goes_on_in_a_smaller_cache(begun, decoder):
    gpu = Gpu(8 * MIB)
    budget = CacheBudget(gpu)
    first = begun(gpu, budget)
    alone = first.cache_bytes
    steps = []

    def seen(ids):
        steps.append(len(ids))
        if len(ids) == 10:
            threading.Thread(target=lambda: begun(gpu, budget)).start()
            time.sleep(0.2)

    prompt = list(range(50))
    turn = Turn(
        prompt=prompt,
        params=SamplingParams(max_tokens=60, seed=1),
        stop_ids=frozenset(),
        stopped=lambda ids: bool(seen(ids)),
    )
    drawn = await wait_for_turn(lambda listener: first.submit(turn, listener))
    assert len(gpu.samplers) == 2
    second = gpu.samplers[1]
    assert first.cache_bytes < 0.6 * alone
    assert first.cache_bytes + second.cache_bytes >= BAR * 8 * MIB
    expected = forward_logprobs(decoder, prompt, drawn.token_ids)
    assert len(drawn.token_ids) == 60
    assert drawn.logprobs == pytest.approx(expected, abs=1e-4)
    second.close()
    budget.reserve(training := Training(), 0)
    assert first.cache_bytes == alone
    assert training


async def test_a_sequence_that_the_smaller_cache_cannot_hold_ends(begun, decoder):
    gpu = Gpu(40 * page_bytes(decoder))
    budget, training = CacheBudget(gpu), Training()
    sampler = begun(gpu, budget)

    def seen(ids):
        if len(ids) == 5:
            thread = threading.Thread(target=budget.measured, args=(training, gpu.total * 3 // 4))
            thread.start()
            time.sleep(0.2)

    turn = Turn(
        prompt=list(range(64)) * 9,
        params=SamplingParams(max_tokens=600, seed=1),
        stop_ids=frozenset(),
        stopped=lambda ids: bool(seen(ids)),
    )
    drawn = await wait_for_turn(lambda listener: sampler.submit(turn, listener))
    assert sampler.max_context < 64 * 9
    assert drawn.finish_reason == "length"
    assert 5 <= len(drawn.token_ids) < 30
    assert len((await draw(sampler, [40]))[1][0].token_ids) == 40


def test_a_device_without_room_for_one_conversation_says_so(begun, decoder):
    with pytest.raises(UsageError, match="One conversation of 1,024 tokens needs .* MiB for it"):
        begun(None, CacheBudget(Gpu(4 * page_bytes(decoder))), max_context=1024)
    with pytest.raises(UsageError, match="One conversation of 64 tokens"):
        begun(None, CacheBudget(Gpu(page_bytes(decoder))))


def test_weights_that_are_loaded_beside_a_cache_have_room_and_leave_the_rest(begun):
    gpu = Gpu(40 * MIB)
    budget = CacheBudget(gpu)
    sampler = begun(gpu, budget)
    with budget.room_for(20 * MIB):
        assert gpu.free() >= 20 * MIB
        assert sampler.cache_bytes >= BAR * 20 * MIB
        gpu.held += 20 * MIB
    with pytest.raises(ValueError, match="no weights"), budget.room_for(5 * MIB):
        raise ValueError("no weights")
    budget.reserve(training := Training(), 0)
    assert BAR * 20 * MIB <= sampler.cache_bytes <= 20 * MIB
    assert training


def test_slots_follow_from_the_tokens_that_fit():
    assert [slots_within(tokens, "cuda") for tokens in (100, 14_563, 10**6)] == [8, 28, 256]
    assert slots_within(10**6, "cpu") == 64


def test_what_one_does_not_want_goes_to_the_others():
    assert divided(90, {"a": 10, "b": 100, "c": 100}) == {"a": 10, "b": 40, "c": 40}
    assert divided(-5, {"a": 10}) == {"a": 0}


async def test_a_cache_on_a_cpu_takes_little_of_a_small_machine_and_grows_by_need(begun, decoder):
    page = page_bytes(decoder)
    laptop = Laptop(400 * page)
    sampler = begun(laptop, CacheBudget(laptop))
    pages = sampler.prefix_cache.pages
    assert sampler.cache_bytes <= laptop.available // 2
    assert pages.usable == 400 // 8
    for round_ in range(4):  # Idle prefixes fill what is usable, and no more.
        await draw(sampler, [300 + round_] * 8)
    assert pages.usable == 400 // 8
    await draw(sampler, [900] * 8, tokens=20)
    assert 400 // 8 < pages.usable <= pages.count
    usable = pages.usable
    laptop.available = 0  # Other programs took it.
    _, drawn = await draw(sampler, [900] * 20, tokens=20)
    assert [len(turn.token_ids) for turn in drawn] == [20] * 20
    assert pages.usable == max(usable, -(-sampler.max_context // PAGE_TOKENS))


def test_what_a_training_will_take_is_no_memory_to_grow_into():
    budget, training = CacheBudget(Laptop(1000)), Training()
    assert budget.grows(200)
    budget.reserve(training, 900)
    assert not budget.grows(200)
    assert CacheBudget(Laptop(100 * FIRST_BYTES)).first(10 * FIRST_BYTES) == FIRST_BYTES


def test_pages_of_one_context_are_always_provided():
    pages = Pages(20, PageGrowth(first=2, least=6, grows=lambda more: False))
    assert pages.provide(6)
    assert not pages.provide(7)
    assert (pages.usable, pages.available, pages.in_use) == (6, 6, 0)


def test_a_cpu_s_cache_takes_memory_only_where_it_is_written_to(decoder):
    from hud.engine.sample.kv_cache import CacheSize

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    before = resident()
    size = CacheSize(pages=4096, page_tokens=64, max_context=64)
    cache = KVCache(decoder.config, size, torch.float32, torch.device("cpu"))
    assert cache.nbytes > 64 * MIB
    assert resident() - before < 8 * MIB
    assert float(cache.keys[0, 17].abs().sum()) == 0.0
    cache.free()
    assert cache.nbytes == 0


def written(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def machine(tmp_path, membership, available="8000000 kB"):
    written(
        tmp_path / "proc",
        meminfo=f"MemTotal: 16000000 kB\nMemAvailable: {available}\nSwapFree: 0 kB\n",
    )
    written(tmp_path / "proc" / "self", cgroup=membership)
    return HostMemory(tmp_path / "proc", tmp_path / "groups")


def test_free_memory_is_that_of_the_machine(tmp_path):
    assert machine(tmp_path, "0::/\n").free() == 8_000_000 * 1024


def test_free_memory_is_within_every_control_group_above_the_process(tmp_path):
    memory = machine(tmp_path, "0::/user/session\n")
    stat = "anon 10\ninactive_file 200\n"
    groups = tmp_path / "groups"
    written(
        groups / "user" / "session", memory__max="max", memory__current="900", memory__stat=stat
    )
    assert memory.free() == 8_000_000 * 1024
    written(groups / "user", memory__max="5000", memory__current="1000", memory__stat=stat)
    assert memory.free() == 5000 - 1000 + 200
    written(groups, memory__max="500", memory__current="1000", memory__stat="anon 10\n")
    assert memory.free() == 0


def test_free_memory_of_a_container_is_read_at_the_root_and_in_version_1_too(tmp_path):
    memory = machine(tmp_path, "5:cpu:/x\n4:memory:/docker/abc\n0::/docker/abc\n")
    files = {
        "memory__limit_in_bytes": "5000",
        "memory__usage_in_bytes": "1000",
        "memory__stat": "total_inactive_file 300\n",
    }
    written(tmp_path / "groups" / "memory", **files)
    assert memory.free() == 4300


def test_this_machine_has_free_memory():
    assert 0 < HostMemory().free() < 1 << 50
    assert 0 < GPU_SHARE < 1
