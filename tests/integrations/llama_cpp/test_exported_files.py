"""llama.cpp loads exported GGUF files and continues texts with the tokens of our sampler. `scripts/setup-integration llama_cpp`."""

import asyncio

import pytest

pytest.importorskip("xllamacpp", reason="scripts/setup-integration llama_cpp")

import httpx
import torch
import xllamacpp
from tests.integrations.gguf.test_model_writing import SCALING, saved
from tests.integrations.gguf.written_files import TEXTS, decoder
from xllamacpp.xllamacpp import ggml_type

from hud.engine.chat.chat_format import ChatFormat
from hud.engine.config import DecoderConfig
from hud.engine.pretrained import load_decoder
from hud.engine.sample.sampler import Sampler
from hud.trace import SamplingParams
from hud_integrations.gguf.model_writing import write_model_file

TOKENS = 50
ENDS = [0, 2]
"""Tokens that llama.cpp takes as ends, <|endoftext|> by its text."""


def of_llama_cpp(path, prompt):
    """Return what llama.cpp samples greedily after a text."""
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_parallel, params.warmup = 256, 1, False
    params.cache_type_k = params.cache_type_v = ggml_type.GGML_TYPE_F32
    params.cpuparams.n_threads = 1
    server = xllamacpp.Server(params)
    asked = {"prompt": prompt, "n_predict": TOKENS, "temperature": 0, "top_k": 1}
    asked |= {"return_tokens": True, "ignore_eos": True, "cache_prompt": False}
    answer = httpx.post(f"{server.listening_address}/completion", json=asked, timeout=60).json()
    return answer["tokens"]


def ours(folder, ids):
    model = load_decoder(folder, dtype=torch.float32)
    with torch.no_grad():
        # `ignore_eos` takes the ends of turns out of what may be sampled.
        bias = torch.zeros(model.config.vocab_size)
        bias[ENDS] = -torch.inf
    logits = model.logits
    model.logits = lambda hidden: logits(hidden) + bias
    sampler = Sampler(model, slots=1)
    params = SamplingParams(max_tokens=TOKENS, temperature=0.0)
    drawn = asyncio.run(sampler.sample(ids, params, frozenset()))
    sampler.close()
    return drawn.token_ids


@pytest.mark.parametrize(
    ("family", "pre", "shape"),
    [
        ("llama", "smollm", {}),
        ("llama", "llama-bpe", {"rope_scaling": SCALING, "attention_bias": False}),
        ("qwen2", "qwen2", {}),
        ("qwen3", "gpt-2", {"tied": False}),
    ],
)
def test_fifty_greedy_tokens_are_the_same(tmp_path, family, pre, shape, monkeypatch):
    monkeypatch.setenv("HUD_CPU_KERNELS", "0")
    folder = saved(tmp_path / "model", decoder(family, **shape), pre)
    path = tmp_path / "model.gguf"
    write_model_file(folder, path)
    chat = ChatFormat(folder, DecoderConfig.from_folder(folder))
    text = TEXTS[7]
    tokens = of_llama_cpp(path, text)
    assert tokens == ours(folder, chat.encode(text))
    assert len(tokens) == TOKENS


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_smaller_types_are_loaded(tmp_path, dtype):
    folder = saved(tmp_path / "model", decoder("qwen3"), dtype=torch.bfloat16)
    path = tmp_path / "model.gguf"
    write_model_file(folder, path, dtype=dtype)
    assert len(of_llama_cpp(path, TEXTS[3])) == TOKENS
