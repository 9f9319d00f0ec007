"""The weights of several servers against each other, by checksums of every tensor."""

import asyncio
import contextlib
import hashlib
import json

import numpy as np
import pytest
import torch
from aiohttp import web
from tests.engine.tiny_policy import tiny_folder
from tests.engine.waiting import until
from tests.integrations.vllm.test_vllm_sampling import LONG, PROMPT, trained_logprobs
from tests.integrations.vllm.vllm_policy import change, vllm_policy
from tests.integrations.vllm.vllm_stand_in import StandIn
from tests.integrations.vllm.vllm_transfer import SendingHalf

from hud.engine.lora import LoraConfig

SPOILED = "model.layers.0.mlp.down_proj.weight"


class Spoiling(StandIn):
    """A server whose next loads leave one wrong number: less than a probe of logprobs can see."""

    spoils = 0

    async def _rpc(self, request):
        answer = await super()._rpc(request)
        if self.spoils:
            self.spoils -= 1
            with torch.no_grad():
                dict(self.decoder.named_parameters())[SPOILED][0, 0] += 1e-4
        return answer

    @property
    def loads(self):
        return self.calls.count("collective_rpc")


@contextlib.asynccontextmanager
async def sampled_by(tmp_path, servers, **options):
    """A policy and its servers, which were compared once."""
    with contextlib.ExitStack() as stack:
        for server in servers:
            stack.enter_context(server)
        policy = await asyncio.to_thread(vllm_policy, servers, tmp_path, **options)
        try:
            yield policy
        finally:
            await asyncio.to_thread(policy.close)


def three():
    return [Spoiling(tiny_folder()) for _ in range(3)]


def sound(policy):
    return all(one.problem is None for one in policy._samplers._pool.replicas)


def checked(servers, times):
    return all(server.checked == times for server in servers)


async def looked_at(policy):
    """Wait for some more health checks."""
    await asyncio.sleep(0.4)
    assert sound(policy)


@pytest.mark.slow
async def test_a_server_with_other_weights_than_most_loads_them_again(tmp_path, caplog):
    wrong, *others = servers = three()
    wrong.spoils = 1
    async with sampled_by(tmp_path, servers) as policy:
        await until(lambda: wrong.checked == 2 and sound(policy))
        assert [server.loads for server in servers] == [2, 1, 1]
        told = f"{wrong.url} has other weights than the other servers with 'base', in"
        assert f"{told} 'dp0:pp0:pcp0:tp0:{SPOILED}' and 0 other tensors" in caplog.text
        await looked_at(policy)
        assert (wrong.loads, checked(others, 1)) == (2, True)


@pytest.mark.slow
async def test_of_two_servers_that_differ_both_load_again(tmp_path):
    servers = three()[:2]
    servers[1].spoils = 1
    async with sampled_by(tmp_path, servers) as policy:
        await until(lambda: checked(servers, 2) and sound(policy))
        assert [server.loads for server in servers] == [2, 2]
        await looked_at(policy)
        drawn = await policy.sample(PROMPT, LONG)
        np.testing.assert_allclose(
            drawn.logprobs, trained_logprobs(policy, PROMPT, drawn), atol=1e-5
        )


@pytest.mark.slow
async def test_servers_that_differ_after_loading_twice_sample_uncompared(tmp_path, caplog):
    """As those of which one computes in another dtype: the probes have verified it."""
    wrong, *others = servers = three()
    wrong.spoils = 1000
    async with sampled_by(tmp_path, servers) as policy:
        await until(lambda: "are not compared any more" in caplog.text)
        await asyncio.to_thread(change, policy, "one")
        await until(lambda: checked(others, 2))
        await looked_at(policy)
        assert [(one.loads, one.checked) for one in servers] == [(3, 2), (2, 2), (2, 2)]


@pytest.mark.slow
async def test_weights_are_read_once_for_every_load_while_nothing_is_sampled(tmp_path):
    servers = three()
    async with sampled_by(tmp_path, servers) as policy:
        await until(lambda: checked(servers, 1))
        await looked_at(policy)
        for server in servers:
            server.hold_at(5)
        await asyncio.to_thread(change, policy, "one", in_flight=True)
        turns = [asyncio.create_task(policy.sample([number, *PROMPT], LONG)) for number in range(3)]
        await until(lambda: all(server.reached.is_set() for server in servers))
        before = [server.checked for server in servers]
        await looked_at(policy)
        assert [server.checked for server in servers] == before
        for server in servers:
            server.hold_at(None)
        await asyncio.gather(*turns)
        await until(lambda: checked(servers, 2))


async def test_a_load_that_changes_no_byte_is_told(tmp_path, caplog):
    servers = three()[:1]
    async with sampled_by(tmp_path, servers) as policy:
        await until(lambda: checked(servers, 1))
        await asyncio.to_thread(change, policy, "one", factor=0.3)
        await until(lambda: checked(servers, 2))
        assert "byte for byte" not in caplog.text
        await asyncio.to_thread(change, policy, "two", factor=0.0)
        told = f"The weights 'two' of the vLLM server {servers[0].url} are those of 'one'"
        await until(lambda: told in caplog.text)
        assert checked(servers, 3)


class Packing(StandIn):
    """A server that packed its layers, and has no bytes of them to read, as one on a CPU."""

    async def _checksums(self, request):
        answer = json.loads((await super()._checksums(request)).body)
        empty = hashlib.sha256(b"").hexdigest()
        packed = {name: empty if "proj" in name else "" for name in answer["checksums"]}
        return web.json_response({"checksums": packed})


async def test_checksums_of_no_bytes_say_nothing(tmp_path, caplog):
    servers = [Packing(tiny_folder()), *three()[:1]]
    async with sampled_by(tmp_path, servers) as policy:
        await until(lambda: checked(servers, 1))
        await asyncio.to_thread(change, policy, "one")
        await until(lambda: checked(servers, 2))
        await looked_at(policy)
        assert "byte for byte" not in caplog.text
        assert "other weights" not in caplog.text


@pytest.mark.parametrize(
    "case", ["older", "failing", "another layout", "adapters", "tensors by a transfer"]
)
async def test_servers_go_on_where_checksums_say_nothing(tmp_path, case):
    options = {"older": {"version": "0.32.0"}, "another layout": {"layout": "language_model."}}
    first = Spoiling(tiny_folder(), **options.get(case, {}))
    second = Spoiling(tiny_folder())
    first.failing_checksums = case == "failing"
    first.spoils = 1 if case in options or case == "failing" else 0
    asked = {
        "adapters": {"lora": LoraConfig(rank=4)},
        "tensors by a transfer": {"connect": SendingHalf},
    }
    async with sampled_by(tmp_path, [first, second], **asked.get(case, {})) as policy:
        if case != "adapters":
            await until(lambda: second.checked)
        await looked_at(policy)
        expected = {"adapters": (0, 0), "tensors by a transfer": (0, 0)}.get(case, (1, 1))
        assert (first.loads, second.loads) == expected
        assert second.checked == (case != "adapters")
