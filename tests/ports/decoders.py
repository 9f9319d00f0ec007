"""Implementations of the port of decoders, small ones with random weights."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import torch
from tests.engine.random_decoder import random_decoder
from tests.lasting_folders import lasting_folder
from transformers import AutoConfig, AutoModelForCausalLM

from hud.engine.decoder import Decoder
from hud.engine.pretrained import load_decoder

VOCABULARY = 64


@functools.cache
def foreign_folder() -> Path:
    """Return the folder of a model outside the Llama, Qwen2 and Qwen3 families."""
    config = AutoConfig.for_model(
        "mistral",
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        sliding_window=None,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).float().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    folder = lasting_folder("mistral-", "-m")
    model.save_pretrained(folder)
    return folder


def own_state() -> Decoder:
    """Return a model with a state of its own, a state space."""
    config = AutoConfig.for_model(
        "mamba", vocab_size=VOCABULARY, hidden_size=32, state_size=4, num_hidden_layers=2
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).float().eval()
    for parameter in model.parameters():
        parameter.data += torch.randn(parameter.shape) * 0.1
    folder = lasting_folder("mamba-", "-s")
    model.save_pretrained(folder)
    return load_decoder(folder)


def hybrid() -> Decoder:
    """Return a model with gated delta rule layers and attention."""
    config = AutoConfig.for_model(
        "qwen3_5_text",
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        max_position_embeddings=256,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).float().eval()
    for parameter in model.parameters():
        parameter.data += torch.randn(parameter.shape) * 0.1
    folder = lasting_folder("qwen3_5-", "-h")
    model.save_pretrained(folder)
    return load_decoder(folder)


DECODERS: dict[str, Callable[[], Decoder]] = {
    "reference": random_decoder,
    "transformers": lambda: load_decoder(foreign_folder()),
    "own state": own_state,
    "hybrid": hybrid,
}


def packed_logprobs(decoder: Decoder, ids: list[int]) -> torch.Tensor:
    """Return the logprobs (T, V) of one sequence by the definition: one packed pass over all of it."""
    tokens = torch.tensor(ids, device=decoder.device)
    positions = torch.arange(len(ids), device=decoder.device)
    bounds = torch.tensor([0, len(ids)], device=decoder.device)
    with torch.no_grad():
        hidden = decoder.hidden_packed(tokens, positions, bounds)
        return decoder.logits(hidden).float().log_softmax(-1)
