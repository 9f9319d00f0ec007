"""A sampler with the runner of a GPU, on a CPU: the kernels, tested by themselves, are replaced by their references."""

import sys
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from hud.engine.sample import sampler as sampling
from hud.engine.sample.token_sampling import sample_tokens
from hud.trace import SamplingParams


def attention(q, keys, values, table, lengths):
    """Return what `paged_attention` returns."""
    rows = []
    for query, pages, length in zip(q, table, lengths.tolist(), strict=True):
        k, v = (one[pages].transpose(0, 1).flatten(1, 2)[:, :length] for one in (keys, values))
        rows.append(F.scaled_dot_product_attention(query[:, None], k, v, enable_gqa=True)[:, 0])
    return torch.stack(rows)


def drawing(logits, params, uniforms, *, cut):
    """Return what `sample_rows` returns."""
    told = [
        SamplingParams(temperature=t, top_p=p if cut else None, top_k=k if cut else None)
        for t, p, k in zip(
            params.temperatures.tolist(), params.top_p.tolist(), params.top_k.tolist(), strict=True
        )
    ]
    ids, logprobs = sample_tokens(logits, told, uniforms.tolist())
    return torch.tensor(ids), torch.tensor(logprobs)


def prompt_attention(q, keys, values, table, tiles):
    """Return what `prefill_attention` returns."""
    found = torch.full_like(q, float("nan"))
    for row, first, position, count in tiles.tolist():
        k, v = (one[table[row]].transpose(0, 1).flatten(1, 2) for one in (keys, values))
        visible = torch.arange(k.shape[1]) <= position + torch.arange(count)[:, None]
        mine = slice(first, first + count)
        found[mine] = F.scaled_dot_product_attention(
            q[mine].transpose(0, 1), k, v, attn_mask=visible, enable_gqa=True
        ).transpose(0, 1)
    return found


@pytest.fixture
def sampler_of(monkeypatch):
    """Return what makes a sampler with a runner of the given class."""
    attend = SimpleNamespace(paged_attention=attention)
    monkeypatch.setitem(sys.modules, "hud_kernels.cuda.paged_attention", attend)
    prompts = SimpleNamespace(prefill_attention=prompt_attention)
    monkeypatch.setitem(sys.modules, "hud_kernels.cuda.prefill.attention", prompts)
    rows = SimpleNamespace(
        sample_rows=drawing,
        RowParams=lambda *values: SimpleNamespace(
            temperatures=values[0], top_p=values[1], top_k=values[2]
        ),
    )
    monkeypatch.setitem(sys.modules, "hud_kernels.cuda.fused_sampling", rows)

    def make(kind, decoder, **options):
        monkeypatch.setattr(sampling, "runner_type", lambda *_: kind)
        return sampling.Sampler(decoder, **options)

    return make
