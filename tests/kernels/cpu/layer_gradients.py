"""Hidden states and gradients of packed layers, for tests that compare ways to compute them."""

import copy
from functools import partial

import torch
from tests.engine.random_decoder import random_decoder

from hud.engine.lora import LoraConfig, attach
from hud_kernels.cpu.passes import CpuLayers

LENGTHS = [50, 40, 7, 31]
PREFIXES = [-1, 0, -1, 2]

drawn_decoder = partial(random_decoder, spread=0.2)


def computed(decoder, dtype=torch.float32, layers=None):
    """Return the hidden states of some rows of sequences that continue others, and all gradients of a sum of logprobs.

    `layers`: by default those of a CPU's passes.
    """
    decoder = copy.deepcopy(decoder).to(dtype)
    decoder.zero_grad()
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 64, (sum(LENGTHS),), generator=generator)
    starts = torch.tensor([0, *LENGTHS]).cumsum(0)
    positions = torch.cat([torch.arange(length) for length in LENGTHS])
    rows = torch.arange(3, len(ids), 2)
    layers = layers or CpuLayers(decoder.config)
    hidden = decoder.hidden_packed(ids, positions, starts, torch.tensor(PREFIXES), rows, layers)
    logprobs = decoder.logits(hidden).log_softmax(-1)[torch.arange(len(rows)), ids[rows]]
    weights = torch.randn(len(rows), generator=generator, dtype=torch.float64).to(dtype)
    if any(parameter.requires_grad for parameter in decoder.parameters()):
        (logprobs * weights).sum().backward()
    found = {name: one.grad for name, one in decoder.named_parameters() if one.grad is not None}
    return found | {"hidden": hidden.detach()}


def adapted(kind, targets):
    """Return a decoder with adapters whose terms are not zero."""
    decoder = drawn_decoder(model_type=kind)
    attach(decoder, LoraConfig(rank=3, alpha=5.0, targets=targets))
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            if name.endswith("lora_B"):
                parameter.normal_(std=0.2, generator=generator)
    return decoder
