"""A decoder small enough to check gradients on: one attention layer, sequences looped over one by one."""

from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

from hud.engine.decoder import Decoder
from hud.learning.datums import Datum


class SmallDecoder(Decoder):
    shares_prefixes = False

    def __init__(self, vocab=23, width=8, dtype=torch.float64, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.config = SimpleNamespace(vocab_size=vocab, ours=False)
        self.embed = nn.Embedding(vocab, width)
        self.place = nn.Embedding(64, width)
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, width, bias=False)
        self.v_proj = nn.Linear(width, width, bias=True)
        self.head = nn.Linear(width, vocab, bias=False)
        self.to(dtype)

    @property
    def device(self):
        return self.embed.weight.device

    @property
    def dtype(self):
        return self.embed.weight.dtype

    def hidden_cached(self, input_ids, positions, cache):
        raise NotImplementedError  # It is trained only.

    def hidden_packed(self, input_ids, positions, cu_seqlens, prefixes=None, rows=None):
        assert prefixes is None
        outputs = []
        for start, end in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True):
            x = self.embed(input_ids[start:end]) + self.place(positions[start:end])
            scores = self.q_proj(x) @ self.k_proj(x).T / x.shape[-1] ** 0.5
            future = torch.ones_like(scores, dtype=torch.bool).triu(1)
            x = x + scores.masked_fill(future, -torch.inf).softmax(-1) @ self.v_proj(x)
            outputs.append(torch.tanh(x))
        hidden = torch.cat(outputs)
        return hidden if rows is None else hidden[rows]

    def logits(self, hidden):
        return 3 * self.head(hidden)


def random_datum(rng, *, vocab=23, traj_idx=0, length=None, temperature=1.0, spread=0.4):
    """A datum with a prompt, several stretches of sampled tokens, and plausible sampler logprobs."""
    length = length or int(rng.integers(4, 14))
    mask = (rng.random(length) < 0.6).astype(np.float32)
    mask[0], mask[1] = 0.0, 1.0
    advantage = np.float32(rng.normal())
    return Datum(
        tokens=rng.integers(0, vocab, length),
        mask=mask,
        logprobs=(mask * rng.normal(-3, spread, length)).astype(np.float32),
        advantages=mask * advantage,
        weights=(mask * rng.normal(1, 0.5, length)).astype(np.float32),
        temperatures=np.full(length, temperature, np.float32),
        traj_idx=traj_idx,
    )
