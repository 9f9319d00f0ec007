"""The key-value cache: one slot for each conversation, all slots preallocated.

A slot's rows are overwritten in place; what a slot holds (which tokens) is the sampler's business. Before a
forward pass, `aim` says to which slots and positions the new tokens belong.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hud.engine.config import DecoderConfig


class KVCache:
    """Keys and values (layers, slots, kv_heads, length, D)."""

    def __init__(
        self,
        config: DecoderConfig,
        slots: int,
        length: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (
            config.num_hidden_layers,
            slots,
            config.num_key_value_heads,
            length,
            config.head_dim,
        )
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.slots, self.length = slots, length
        self.groups = config.num_attention_heads // config.num_key_value_heads

    @staticmethod
    def bytes_for(config: DecoderConfig, slots: int, length: int, dtype: torch.dtype) -> int:
        """Return the size of a cache in bytes."""
        elements = config.num_hidden_layers * slots * config.num_key_value_heads * length
        return 2 * elements * config.head_dim * dtype.itemsize

    def aim(self, slots: Tensor, starts: Tensor, width: int, longest: int) -> None:
        """Aim at `width` new tokens for each of `slots` (B,), after `starts` (B,) tokens that each holds.

        `longest` is the greatest number of tokens that any of them will hold. New tokens are laid out row by
        row: (B * width,). Rows shorter than `width` are padded behind; what padding writes is overwritten
        before it is ever attended to.
        """
        device = self.keys.device
        self.rows, self.width, self.longest = slots.shape[0], width, longest
        positions = starts[:, None] + torch.arange(width, device=device)
        self.written = positions.clamp_(max=self.length - 1)
        self.at = slots
        count = slots.shape[0]
        # The first slots in order can be read where they lie; any others are gathered.
        self.in_place = bool((slots == torch.arange(count, device=device)).all())
        reach = torch.arange(longest, device=device)
        self.mask = reach <= self.written[:, :, None]  # (B, width, longest)

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Store keys and values (B * width, kv_heads, D) of the new tokens."""
        shape = (self.rows, self.width, *k.shape[1:])
        self.keys[layer][self.at[:, None], :, self.written] = k.view(shape)
        self.values[layer][self.at[:, None], :, self.written] = v.view(shape)

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """Return what the new tokens' queries (B * width, heads, D) attend to: (B * width, heads * D)."""
        keys, values = self.keys[layer], self.values[layer]
        if self.in_place:
            keys, values = (
                keys[: self.rows, :, : self.longest],
                values[: self.rows, :, : self.longest],
            )
        else:
            keys = keys[self.at, :, : self.longest]
            values = values[self.at, :, : self.longest]
        heads, dim = q.shape[1], q.shape[2]
        q = q.view(self.rows, self.width, heads, dim).transpose(1, 2)
        if self.width > 1:
            attended = F.scaled_dot_product_attention(
                q, keys, values, attn_mask=self.mask[:, None], enable_gqa=self.groups > 1
            )
            return attended.transpose(1, 2).reshape(self.rows * self.width, heads * dim)
        # One token for each row: two batched products, the group's queries together, copy no keys.
        grouped = q.reshape(self.rows, heads // self.groups, self.groups, dim)
        scores = torch.matmul(grouped, keys.transpose(-1, -2)) * dim**-0.5
        scores.masked_fill_(~self.mask[:, None], float("-inf"))
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(values.dtype)
        return torch.matmul(weights, values).reshape(self.rows, heads * dim)

    def copy(self, source: int, target: int, count: int) -> None:
        """Copy the first `count` tokens of one slot to another."""
        self.keys[:, target, :, :count] = self.keys[:, source, :, :count]
        self.values[:, target, :, :count] = self.values[:, source, :, :count]
