"""New weights on vLLM servers: in order, never beside old keys and values, and written down token for token."""

import asyncio
import contextlib
import shutil

import numpy as np
import pytest
from tests.engine.tiny_policy import tiny_folder
from tests.engine.waiting import until
from tests.integrations.vllm.test_vllm_sampling import LONG, PROMPT, trained_logprobs
from tests.integrations.vllm.vllm_policy import change, vllm_policy
from tests.integrations.vllm.vllm_stand_in import StandIn

from hud.engine.lora import LoraConfig
from hud.engine.tiny_model import create_tiny
from hud.errors import InfrastructureFault, UsageError

LORA = LoraConfig(rank=4)
RELOADED = ["pause", "collective_rpc", "update_weight_version", "resume"]


@pytest.fixture
def servers():
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(StandIn(tiny_folder())) for _ in range(2)]


@pytest.fixture
def policy(servers, tmp_path):
    made = vllm_policy(servers, tmp_path)
    yield made
    made.close()


@pytest.fixture
def adapted(servers, tmp_path):
    made = vllm_policy(servers, tmp_path, lora=LORA)
    yield made
    made.close()


def held(servers, tokens):
    for server in servers:
        server.hold_at(tokens)


def check(policy, drawn):
    expected = trained_logprobs(policy, PROMPT, drawn)
    np.testing.assert_allclose(drawn.logprobs, expected, atol=1e-4)


# -- all weights ------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_after_a_step_every_server_draws_with_the_new_weights(policy, servers):
    for step in ("one", "two"):
        await asyncio.to_thread(change, policy, step)
        turns = [policy.sample([number, *PROMPT], LONG) for number in range(2)]
        for number, drawn in enumerate(await asyncio.gather(*turns)):
            assert (drawn.version, drawn.swaps) == (step, [])
            expected = trained_logprobs(policy, [number, *PROMPT], drawn)
            np.testing.assert_allclose(drawn.logprobs, expected, atol=1e-4)
    assert all(len(server.requests) == 2 for server in servers)


async def test_weights_are_loaded_while_the_server_is_paused(policy, servers):
    await asyncio.to_thread(change, policy, "one")
    for server in servers:
        assert server.calls == RELOADED * 2  # Once at the beginning: what it had is not known.


@pytest.mark.slow
async def test_turns_are_finished_with_the_old_weights_and_new_ones_wait(policy, servers):
    held(servers, 10)
    old = asyncio.create_task(policy.sample(PROMPT, LONG))
    await until(lambda: any(server.sequences for server in servers))
    step = asyncio.create_task(asyncio.to_thread(change, policy, "one"))
    await until(lambda: policy._samplers._pool.current.version == "one")
    new = asyncio.create_task(policy.sample(PROMPT, LONG))
    assert all("pause" not in server.calls[len(RELOADED) :] for server in servers)
    held(servers, None)
    await step
    drawn = await old
    assert (drawn.version, drawn.swaps, len(drawn.token_ids)) == (None, [], 40)
    drawn = await new
    assert (drawn.version, drawn.swaps, drawn.cached_tokens) == ("one", [], 0)
    check(policy, drawn)


async def test_in_flight_a_turn_is_continued_by_the_new_weights_and_says_from_where(
    policy, servers
):
    held(servers, 15)
    turn = asyncio.create_task(policy.sample(PROMPT, LONG))
    await until(lambda: any(server.reached.is_set() for server in servers))
    await until(lambda: sum(len(one.token_ids) for one in policy._samplers._requests) == 15)
    await asyncio.to_thread(change, policy, "one", in_flight=True)
    held(servers, None)
    drawn = await turn
    assert (drawn.version, drawn.swaps) == (None, [(15, "one")])
    # Its own server went on with it: nothing was asked twice.
    assert sum(len(server.requests) for server in servers) == 1
    expected = trained_logprobs(policy, PROMPT, drawn)
    np.testing.assert_allclose(drawn.logprobs[15:], expected[15:], atol=1e-4)
    assert not np.allclose(drawn.logprobs[:15], expected[:15], atol=1e-2)


@pytest.mark.slow
async def test_keys_and_values_of_old_weights_are_found_by_nobody(policy, servers):
    first = await policy.sample(PROMPT, LONG)
    again = await policy.sample(PROMPT, LONG)
    assert (first.cached_tokens, again.cached_tokens) == (0, 32)
    await asyncio.to_thread(change, policy, "one", in_flight=True)
    turns = [await policy.sample(PROMPT, LONG) for _ in range(2)]
    assert [turn.cached_tokens for turn in turns] == [0, 32]
    salts = {one.cache_salt for server in servers for one in server.requests}
    assert salts == {"base", "one"}


@pytest.mark.slow
async def test_a_server_that_cannot_load_draws_no_more_until_it_can(policy, servers):
    broken, sound = servers
    broken.failing_reload = True
    held(servers, 15)
    # Begun with the old weights, it is continued on the other one.
    turns = [asyncio.create_task(policy.sample([n, *PROMPT], LONG)) for n in range(2)]
    await until(lambda: all(server.reached.is_set() for server in servers))
    await until(lambda: sum(len(one.token_ids) for one in policy._samplers._requests) == 30)
    await asyncio.to_thread(change, policy, "one", in_flight=True)
    held(servers, None)
    for drawn in await asyncio.gather(*turns):
        assert (drawn.version, drawn.swaps, len(drawn.token_ids)) == (None, [(15, "one")], 40)
    asked = len(broken.requests)
    await policy.sample(PROMPT, LONG)
    assert len(broken.requests) == asked
    broken.failing_reload = False
    await until(lambda: all(one.problem is None for one in policy._samplers._pool.replicas))
    held(servers, 1)
    turns = [asyncio.create_task(policy.sample([9, n, *PROMPT], LONG)) for n in range(2)]
    await until(lambda: all(server.reached.is_set() for server in servers))
    held(servers, None)
    assert {turn.version for turn in await asyncio.gather(*turns)} == {"one"}
    assert len(broken.requests) == asked + 1
    assert not sound.paused


async def test_a_server_that_was_started_again_is_given_the_newest_weights_first(policy, servers):
    await asyncio.to_thread(change, policy, "one")
    for server in servers:
        server.kill()
    turn = asyncio.create_task(policy.sample(PROMPT, LONG))
    await asyncio.sleep(0.1)
    servers[0].start()
    drawn = await turn
    assert drawn.version == "one"
    check(policy, drawn)


async def test_a_server_with_older_weights_than_the_others_draws_nothing_with_them(policy, servers):
    pool = policy._samplers._pool
    older = pool.replicas[0].has
    await asyncio.to_thread(change, policy, "one")
    pool.replicas[0].has = older  # As where it came while the others were given the newest.
    drawn = await asyncio.gather(*(policy.sample([n, *PROMPT], LONG) for n in range(4)))
    assert {one.version for one in drawn} == {"one"}
    await until(lambda: pool.replicas[0].has is pool.current and not pool.replicas[0].problem)


async def test_published_folders_do_not_pile_up(policy, tmp_path):
    for step in range(5):
        await asyncio.to_thread(change, policy, f"step-{step}")
    assert sorted(path.name for path in (tmp_path / "published").iterdir()) == ["step-3", "step-4"]


# -- adapters ---------------------------------------------------------------------------------------


async def test_every_checkpoints_adapter_has_a_name_of_its_own(adapted, servers):
    first = await adapted.sample(PROMPT, LONG)
    check(adapted, first)
    await asyncio.to_thread(change, adapted, "one")
    second = await adapted.sample(PROMPT, LONG)
    check(adapted, second)
    assert (first.version, second.version, second.cached_tokens) == (None, "one", 0)
    asked = {one.model for server in servers for one in server.requests}
    assert asked == {"hud-test-base", "hud-test-one"}
    for server in servers:
        assert server.calls[:2] == ["load_lora_adapter"] * 2
        await until(lambda server=server: list(server.adapters) == ["hud-test-one"])


@pytest.mark.slow
async def test_turns_are_finished_with_their_adapter_while_others_begin_with_the_next(
    adapted, servers
):
    held(servers, 10)
    old = asyncio.create_task(adapted.sample(PROMPT, LONG))
    await until(lambda: any(server.sequences for server in servers))
    await asyncio.to_thread(change, adapted, "one")  # It waits for nobody.
    new = asyncio.create_task(adapted.sample(PROMPT, LONG))
    await until(lambda: sum(len(server.sequences) for server in servers) == 2)
    held(servers, None)
    assert [(turn.version, turn.swaps) for turn in [await old, await new]] == [
        (None, []),
        ("one", []),
    ]
    # The old adapter goes when nobody draws with it any more.
    await until(lambda: all(list(server.adapters) == ["hud-test-one"] for server in servers))


async def test_in_flight_a_turn_goes_on_with_the_next_adapter(adapted, servers):
    held(servers, 15)
    turn = asyncio.create_task(adapted.sample(PROMPT, LONG))
    await until(lambda: any(server.reached.is_set() for server in servers))
    await until(lambda: sum(len(one.token_ids) for one in adapted._samplers._requests) == 15)
    await asyncio.to_thread(change, adapted, "one", in_flight=True)
    held(servers, None)
    drawn = await turn
    assert (drawn.version, drawn.swaps) == (None, [(15, "one")])
    expected = trained_logprobs(adapted, PROMPT, drawn)
    np.testing.assert_allclose(drawn.logprobs[15:], expected[15:], atol=1e-4)


@pytest.mark.slow
async def test_a_server_that_forgot_the_adapter_is_given_it_again(adapted, servers):
    await adapted.sample(PROMPT, LONG)
    for server in servers:
        server.adapters.clear()
    drawn = await adapted.sample(PROMPT, LONG)
    assert len(drawn.token_ids) == 40
    check(adapted, drawn)


@pytest.mark.slow
async def test_an_adapter_that_another_process_loaded_is_loaded_from_the_folder_of_this_one(
    servers, tmp_path
):
    # A server that evicted an adapter reads its folder again, and ends where that is gone.
    earlier, later = tmp_path / "earlier", tmp_path / "later"
    vllm_policy(servers, earlier, lora=LORA).close()
    shutil.rmtree(earlier)
    policy = vllm_policy(servers, later, lora=LORA)
    check(policy, await policy.sample(PROMPT, LONG))
    policy.close()
    for server in servers:
        folder, _ = server.adapters["hud-test-base"]
        assert folder.parent.parent == later


# -- servers that are not what they should be -------------------------------------------------------


def refused(tmp_path, *, lora=None, key=None, folder=None, **options):
    with StandIn(folder or tiny_folder(), **options) as server, pytest.raises(UsageError) as raised:
        vllm_policy([server], tmp_path, lora=lora, key=key, folder=tiny_folder())
    return str(raised.value).replace(server.url, "URL")


def test_a_server_that_cannot_be_reached_is_named(tmp_path):
    with pytest.raises(
        InfrastructureFault, match="vLLM server http://127.0.0.1:9 cannot be reached"
    ):
        vllm_policy(["http://127.0.0.1:9"], tmp_path)


async def test_one_that_is_not_there_yet_holds_nothing_up(servers, tmp_path):
    servers[1].kill()
    policy = await asyncio.to_thread(vllm_policy, servers, tmp_path)
    assert len((await policy.sample(PROMPT, LONG)).token_ids) == 40
    policy.close()


def test_a_version_that_is_too_old_is_told(tmp_path):
    said = refused(tmp_path, version="0.11.2")
    assert "URL is of version 0.11.2; 0.16 is the oldest" in said


def test_logprobs_before_temperature_are_found_out(tmp_path):
    said = refused(tmp_path, processed=False)
    assert "start it with --logprobs-mode processed_logprobs" in said


def test_another_model_is_found_out(tmp_path):
    other = tmp_path / "other"
    create_tiny(other, ["something else"] * 50, vocab_size=400, hidden=32, layers=2, seed=7)
    said = refused(tmp_path, folder=other, lora=LORA)
    assert "URL" in said


def test_a_server_without_the_api_for_weights_is_told_what_it_needs(tmp_path):
    full = refused(tmp_path, dev_mode=False)
    assert "Not Found. The server was started without VLLM_SERVER_DEV_MODE=1" in full
    assert full.endswith("start it again with it, or train by LoRA (--lora-rank).")
    said = refused(tmp_path, lora=LORA, lora_api=False)
    assert "--enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True" in said


def test_adapters_need_no_more_than_the_api_for_adapters(tmp_path):
    with StandIn(tiny_folder(), dev_mode=False) as server:
        vllm_policy([server], tmp_path, lora=LORA).close()


def test_a_key_is_sent_and_its_lack_is_told(tmp_path):
    needed = refused(tmp_path, key="wrong", served_key="right")
    assert "URL refuses the key, or its lack (401)" in needed
    assert needed.endswith("--key-env VARIABLE.")
    with StandIn(tiny_folder(), served_key="right") as server:
        vllm_policy([server], tmp_path, key="right").close()


def test_a_server_that_gives_no_token_ids_is_told(tmp_path):
    assert "too old to return token ids" in refused(tmp_path, token_ids=False)
