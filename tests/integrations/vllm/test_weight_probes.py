"""Probes accept the same weights in another number format, also with large logits, and no other weights."""

import asyncio
from dataclasses import replace

import pytest
import torch
from aiohttp import web
from tests.engine.tiny_policy import tiny_folder
from tests.integrations.vllm.vllm_policy import change, vllm_policy
from tests.integrations.vllm.vllm_stand_in import StandIn

from hud.engine.pretrained import load_decoder
from hud.errors import InfrastructureFault
from hud.trace import SamplingParams
from hud_integrations.vllm import server
from hud_integrations.vllm.completion import Piece
from hud_integrations.vllm.publication import PROBE_TEMPERATURE, PROBE_TOP, Publisher, rounding_of


def decoder_of(dtype, size, *, noise=0.0):
    """Return the tiny model with its largest logits near `size`, and weights that differ by `noise`."""
    decoder = load_decoder(tiny_folder(), dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in decoder.parameters():
            deviation = weight.std(unbiased=False)
            weight.add_(torch.randn(weight.shape, generator=generator) * deviation * noise)
        decoder.model.norm.weight.mul_(size / largest_logit(decoder))
    return decoder.to(dtype)


def largest_logit(decoder):
    return max(float(probe_logits(decoder, probe).max()) for probe in publication(decoder).probes)


def publication(decoder):
    return Publisher(
        decoder, None, root=tiny_folder(), name="m", find=lambda _: tiny_folder()
    ).publish(None)


def probe_logits(decoder, probe):
    count = len(probe.prompt)
    with torch.no_grad():
        hidden = decoder.hidden_packed(
            torch.tensor(probe.prompt), torch.arange(count), torch.tensor([0, count])
        )
        return decoder.logits(hidden[-1:])[0].float()


def answers(decoder, probes, temperature=PROBE_TEMPERATURE):
    """Return what a server with a decoder's weights answers to probes."""
    pieces = []
    for probe in probes:
        logprobs = (probe_logits(decoder, probe) / temperature).log_softmax(-1)
        top = [(int(token), float(logprobs[token])) for token in logprobs.topk(PROBE_TOP).indices]
        pieces.append(Piece([top[0][0]], [top[0][1]], [top], "length", None))
    return pieces


@pytest.mark.parametrize("size", [2, 30, 120])
@pytest.mark.parametrize("ours", [torch.float32, torch.bfloat16])
def test_a_server_in_bf16_has_the_weights_and_one_with_others_has_not(size, ours):
    published = publication(decoder_of(ours, size))
    server = decoder_of(torch.bfloat16, size)
    assert published.mistake(answers(server, published.probes)) is None
    raw = published.mistake(answers(server, published.probes, temperature=1.0))
    assert "before temperature" in raw
    other = decoder_of(torch.bfloat16, size, noise=1.0)
    assert "other weights" in published.mistake(answers(other, published.probes))


def test_a_rounding_is_the_spacing_of_bf16_at_the_largest_logits():
    logits = torch.full((2, 9), -300.0)
    logits[:, :5] = torch.tensor([31.9, 30.0, 20.0, 18.0, 17.0])
    assert rounding_of(logits) == 0.125
    assert rounding_of(logits / 8) == 0.125 / 8


def test_a_tied_model_s_projection_that_a_cpu_server_packed_is_named():
    decoder, other = decoder_of(torch.float32, 2), decoder_of(torch.float32, 2, noise=1.0)
    assert decoder.config.tie_word_embeddings
    published = publication(decoder)
    stale = answers(other, published.probes)
    assert "packs the vocabulary projection" not in published.mistake(stale)
    assert "packs the vocabulary projection" in replace(published, version="one").mistake(stale)
    untied = replace(published, version="one", tied=False)
    assert "packs the vocabulary projection" not in untied.mistake(stale)


class Compiling(StandIn):
    """A server whose first tokens come late, as those of a fresh one."""

    SECONDS = 2.0

    async def _completions(self, request):
        await asyncio.sleep(self.SECONDS)
        return await super()._completions(request)


@pytest.mark.slow
def test_the_first_answers_of_a_fresh_server_have_the_time_of_a_load(tmp_path, monkeypatch):
    assert server.LOAD_SECONDS == 600
    with Compiling(tiny_folder()) as fresh:
        monkeypatch.setattr(server, "ANSWER_SECONDS", Compiling.SECONDS / 4)
        vllm_policy([fresh], tmp_path / "waits").close()
        monkeypatch.setattr(server, "LOAD_SECONDS", Compiling.SECONDS / 4)
        with pytest.raises(InfrastructureFault, match="did not answer in time"):
            vllm_policy([fresh], tmp_path / "gives-up", server=0.5)


class Packed(StandIn):
    """A server that never renews its weights, as one on a CPU its vocabulary projection."""

    async def _rpc(self, request):
        return web.json_response({"results": [None]})


async def test_turns_fail_at_once_where_every_server_refuses_the_weights(tmp_path):
    with Packed(tiny_folder()) as server:
        policy = await asyncio.to_thread(vllm_policy, [server], tmp_path, server=600.0)
        await asyncio.to_thread(change, policy, "step-1", factor=3.0)
        with pytest.raises(InfrastructureFault, match="packs the vocabulary projection"):
            await asyncio.wait_for(policy.sample([1, 2, 3], SamplingParams(max_tokens=4)), 10.0)
        policy.close()
