"""The batches of the check: packed, cached and adapted, compared with plain `transformers` one sequence at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from hud.engine.decoder import Decoder
from hud.engine.lora import LoraConfig, attach, lora_layers
from hud.engine.models.attention import chains
from hud.engine.models.expert_adapters import adapters_of, expert_weights
from hud.engine.sample.request import SampledTurn
from hud.engine.sample.sampler import Sampler
from hud.trace import SamplingParams

CLOSE = 1e-4
"""Largest difference of logprobs that is rounding, of logprobs up to `LARGE`; of larger ones, in proportion."""
LARGE = 20.0
GRADIENT_CLOSE = 1e-3
"""Largest difference of gradients that is rounding, relative to the largest entry of the parameter's."""
LENGTHS = (41, 9, 27, 1, 18)
TREE = (-1, 0, 1, 1, 0)
"""The row that each continues in the batch with shared beginnings, or -1."""
ADAPTER = LoraConfig(rank=2, alpha=4.0)
CACHE_BYTES = 64 << 20
_MOVED = 0.02


class Difference(Exception):
    """The part that differs from plain `transformers`, and by how much."""

    def __init__(self, part: str, detail: str) -> None:
        super().__init__(f"{part}: {detail}")
        self.part, self.detail = part, detail


def sequences(vocabulary: int, lengths: Sequence[int], seed: int = 0) -> list[Tensor]:
    """Return random token ids."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, vocabulary, (length,), generator=generator) for length in lengths]


def _sequences(decoder: Decoder, lengths: Sequence[int], seed: int = 0) -> list[Tensor]:
    """Return random token ids, none of which stands for a picture."""
    parts = sequences(decoder.config.vocab_size, lengths, seed)
    for token in decoder.picture_tokens:
        parts = [torch.where(ids == token, 3 if token != 3 else 4, ids) for ids in parts]
    return parts


def plain_logprobs(plain: Any, ids: Tensor) -> Tensor:
    """Return the logprobs (T, V) of one sequence by plain `transformers`, without a cache."""
    logits: Tensor = plain(input_ids=ids[None], use_cache=False).logits[0]
    return logits.float().log_softmax(-1)


def compare(part: str, ours: Tensor, theirs: Tensor) -> None:
    """Raise `Difference` where logprobs differ by more than rounding."""
    if ours.shape != theirs.shape:
        raise Difference(part, f"shape {tuple(ours.shape)} instead of {tuple(theirs.shape)}")
    largest = float(theirs.abs().max())
    off = float((ours - theirs).abs().max())
    if not off <= CLOSE * max(1.0, largest / LARGE):
        raise Difference(part, f"logprobs differ by up to {off:.2g}")


def packed_logprobs(
    decoder: Decoder, parts: Sequence[Tensor], prefixes: Sequence[int] | None = None
) -> Tensor:
    """Return the logprobs (T, V) of sequences in one packed pass; `prefixes`: see `Decoder.hidden_packed`."""
    positions = torch.cat(
        [
            torch.arange(sum(len(parts[row]) for row in chain))[-len(parts[chain[-1]]) :]
            for chain in chains(prefixes or [-1] * len(parts))
        ]
    )
    bounds = torch.tensor([0, *map(len, parts)]).cumsum(0)
    rows = None if prefixes is None else torch.tensor(prefixes)
    hidden = decoder.hidden_packed(torch.cat(list(parts)), positions, bounds, rows)
    return decoder.logits(hidden).float().log_softmax(-1)


def check_packing(decoder: Decoder, plain: Any, part: str = "packing") -> None:
    """Compare sequences alone, in one packed pass, and as a tree of common beginnings."""
    parts = _sequences(decoder, LENGTHS)
    with torch.no_grad():
        for alone in parts[:2]:
            compare("attention", packed_logprobs(decoder, [alone]), plain_logprobs(plain, alone))
        theirs = torch.cat([plain_logprobs(plain, ids) for ids in parts])
        compare(part, packed_logprobs(decoder, parts), theirs)
        if decoder.shares_prefixes:
            shared = packed_logprobs(decoder, parts, TREE)
            for row, chain in zip(torch.split(shared, list(LENGTHS)), chains(TREE), strict=True):
                joined = plain_logprobs(plain, torch.cat([parts[other] for other in chain]))
                compare(part, row, joined[-len(row) :])


def check_gradient(decoder: Decoder, plain: Any) -> None:
    """Compare the gradient of a packed batch."""
    parts = _sequences(decoder, LENGTHS[:3], seed=1)
    decoder.requires_grad_(True)
    plain.requires_grad_(True)
    theirs = torch.cat([plain_logprobs(plain, ids) for ids in parts])
    ours = packed_logprobs(decoder, parts)
    compare_gradients(decoder, plain, ours, theirs)


def compare_gradients(decoder: Decoder, plain: Any, ours: Tensor, theirs: Tensor) -> None:
    """Raise `Difference` where the gradients of logprobs, computed by each of both, differ by more than rounding."""
    weights = torch.randn(theirs.shape, generator=torch.Generator().manual_seed(2))
    gradients = []
    for module, logprobs in ((decoder, ours), (plain, theirs)):
        module.zero_grad()
        (logprobs * weights).sum().backward()  # type: ignore[no-untyped-call]
        gradients.append(
            {name.removeprefix("causal."): p.grad for name, p in module.named_parameters()}
        )
        module.requires_grad_(False)
    for name, expected in gradients[1].items():
        gradient = gradients[0].get(name)
        if expected is None and gradient is None:
            continue
        if expected is None or gradient is None:
            raise Difference("gradient", f"{name} has one here or there alone")
        off = float((gradient - expected).abs().max())
        if not off <= GRADIENT_CLOSE * float(expected.abs().max()) + 1e-5:
            raise Difference("gradient", f"that of {name} differs by up to {off:.2g}")


def check_cache(decoder: Decoder, plain: Any) -> None:
    """Compare what the sampler samples: a batch, second turns, a branched prefix, and all again after a swap of weights."""
    sampler = Sampler(decoder, slots=4, cache_bytes=CACHE_BYTES)
    try:
        prompts = [ids.tolist() for ids in _sequences(decoder, (30, 70, 13), seed=3)]
        branched = prompts[0][:24] + prompts[2][:6]
        turns = asyncio.run(_sampled(sampler, prompts))
        second = [
            [*prompt, *_text(decoder, turn), *prompts[2][:5]]
            for prompt, turn in zip(prompts, turns, strict=True)
        ]
        _check_turns("cache", plain, prompts, turns)
        _check_turns(
            "cache", plain, [*second, branched], asyncio.run(_sampled(sampler, [*second, branched]))
        )
        with sampler.exclusive():
            move(decoder, plain)
        sampler.set_version("moved")
        _check_turns("cache", plain, second, asyncio.run(_sampled(sampler, second)))
    finally:
        sampler.close()


def _text(decoder: Decoder, turn: SampledTurn) -> list[int]:
    """Return the ids of a turn without a token that stands for a picture, which ends it."""
    return [token for token in turn.token_ids if token not in decoder.picture_tokens]


async def _sampled(sampler: Sampler, prompts: Sequence[list[int]]) -> list[SampledTurn]:
    return await asyncio.gather(
        *(
            sampler.sample(prompt, SamplingParams(max_tokens=11, seed=seed), frozenset())
            for seed, prompt in enumerate(prompts)
        )
    )


def _check_turns(
    part: str, plain: Any, prompts: Sequence[list[int]], turns: Sequence[SampledTurn]
) -> None:
    for prompt, turn in zip(prompts, turns, strict=True):
        ids = torch.tensor(turn.token_ids)
        with torch.no_grad():
            theirs = plain_logprobs(plain, torch.tensor(prompt + turn.token_ids))
        # Sampled where the model said so: the logprob before each token.
        theirs = theirs[len(prompt) - 1 : -1].gather(-1, ids[:, None]).squeeze(-1)
        compare(part, torch.tensor(turn.logprobs), theirs)


@torch.no_grad()
def move(decoder: Decoder, plain: Any) -> None:
    """Move the weights of both alike, as a training step does."""
    theirs = dict(plain.named_parameters())
    generator = torch.Generator().manual_seed(4)
    for name, parameter in decoder.named_parameters():
        step = torch.randn(parameter.shape, generator=generator) * _MOVED
        parameter.add_(step)
        theirs[name.removeprefix("causal.")].add_(step)


def check_adapter(decoder: Decoder, plain: Any) -> None:
    """Compare packed and cached batches with an adapter with those of weights in which it is merged."""
    if not wrap(decoder):
        return
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, layer in lora_layers(decoder).items():
            layer.lora_B.copy_(torch.randn(layer.lora_B.shape, generator=generator) * 0.1)
            merged: nn.Module = plain.get_submodule(name.removeprefix("causal."))
            assert isinstance(merged, nn.Linear)
            merged.weight += layer.merged_weight() - layer.base.weight
        for name, owner, own in expert_weights(decoder):
            adapter = adapters_of(owner).get(own)
            if adapter is None:
                continue
            adapter.lora_B.copy_(torch.randn(adapter.lora_B.shape, generator=generator) * 0.1)
            stacked = plain.get_submodule(name.removeprefix(decoder.name_prefix))
            stacked.get_parameter(own).add_(adapter.delta())
    check_packing(decoder, plain, "adapter")
    sampler = Sampler(decoder, slots=4, cache_bytes=CACHE_BYTES)
    try:
        prompts = [ids.tolist() for ids in _sequences(decoder, (20, 40), seed=6)]
        _check_turns("adapter", plain, prompts, asyncio.run(_sampled(sampler, prompts)))
    finally:
        sampler.close()


def wrap(decoder: Decoder) -> bool:
    """Wrap the layers that get adapters by default, or else all linear ones but the head; False: there are none."""
    causal: Any = getattr(decoder, "causal", None)
    head = None if causal is None else causal.get_output_embeddings()
    names = {
        name.rpartition(".")[2]
        for name, module in decoder.named_modules()
        if isinstance(module, nn.Linear) and module is not head
    }
    names |= {own for _, _, own in expert_weights(decoder)}
    targets = tuple(sorted(names)) if names.isdisjoint(ADAPTER.targets) else ADAPTER.targets
    if targets:
        attach(decoder, replace(ADAPTER, targets=targets))
    return bool(targets)
