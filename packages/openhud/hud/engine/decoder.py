"""The port of decoders: token ids to hidden states to logits, packed for training and cached for sampling.

A decoder is a `torch.nn.Module` whose parameters are the model's weights; adapters wrap its linear layers in place.
Implementations: `models.reference_decoder.ReferenceDecoder` in plain PyTorch, and, for other architectures,
`foreign.transformers_decoder.TransformersDecoder`, `foreign.hybrid_decoder.HybridDecoder` with recurrent layers,
`foreign.state_decoder.StateDecoder` and, with pictures, `foreign.picture_decoder.PictureDecoder` and
`foreign.hybrid_picture_decoder.HybridPictureDecoder`. `tests/ports/test_decoder_port.py` is their conformance suite.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from hud.engine.config import DecoderConfig
from hud.trace.sampled.pictures import Picture


class AttentionCache(Protocol):
    """Keys and values of earlier tokens, prepared for the rows of one pass."""

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Store keys and values (N, kv_heads, D) of the new tokens."""

    def write_experts(self, experts: Tensor) -> None:
        """Store the router choices (N, routers, k) of the new tokens."""

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """Return the attention output (N, heads * D) of the new tokens' queries (N, heads, D), in the dtype of q."""

    def attend_within(self, layer: int, q: Tensor, window: int | None) -> Tensor:
        """Return what `attend` returns, of attention to the last `window` tokens alone; None: to all."""


class Decoder(nn.Module, ABC):
    """Weights that compute tokens."""

    config: DecoderConfig

    shares_prefixes: ClassVar[bool] = True
    """`hidden_packed` takes `prefixes`; False: sequences are packed without sharing."""

    keeps_state: ClassVar[bool] = False
    """True: sampled by `advance`, with a state of the decoder's own for each sequence; False: by `hidden_cached`."""

    whole_prompts: ClassVar[bool] = False
    """True: `advance` gets a prompt's new tokens at once. For decoders with `keeps_state`."""

    picture_tokens: frozenset[int] = frozenset()
    """Ids of the tokens that stand for pictures; empty: it reads text alone."""

    name_prefix: ClassVar[str] = ""
    """Prefix of its modules' names that the names in files lack."""

    tower_modules: tuple[str, ...] = ()
    """Names of the modules that compute pictures alone; adapters leave them out by default."""

    sampled_routes: Any = None
    """Router choices of sampled sequences (`models.routing.SampledRoutes`), which their training pass replays; None: none are kept."""

    checkpointed: bool = False
    """True: recompute each layer in the backward pass instead of keeping its activations."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Device of the weights."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """Dtype of the weights, and of hidden states."""

    @abstractmethod
    def hidden_packed(
        self,
        input_ids: Tensor,
        positions: Tensor,
        cu_seqlens: Tensor,
        prefixes: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Return the last hidden states (T, H) of packed sequences, or (N, H) of the tokens `rows` (N,) alone.

        `input_ids` and `positions` are (T,) int64; `cu_seqlens` (S + 1,) int64 holds where each sequence
        starts, and the total. A token attends to those before it in its own sequence, and to all that the last token
        of the sequence attends to that its own continues: `prefixes` (S,) int64 holds that one's row, or -1. Rows are
        depth first: each is followed by those that continue it, at any depth, before any other.
        Differentiable with respect to the weights.
        """

    @abstractmethod
    def hidden_cached(self, input_ids: Tensor, positions: Tensor, cache: AttentionCache) -> Tensor:
        """Return the last hidden states (N, H) of new tokens (N,) at `positions` (N,), all int64.

        Each layer writes the keys and values of the new tokens to `cache` and then attends by it. No gradient is needed.
        """

    def hidden_with_pictures(
        self,
        input_ids: Tensor,
        cu_seqlens: Tensor,
        pictures: Sequence[Sequence[Picture]],
        rows: Tensor | None = None,
    ) -> Tensor:
        """Return what `hidden_packed` returns, for sequences with `pictures`: a list for each, of positions in it.

        For decoders with `picture_tokens`.
        """
        raise NotImplementedError

    def advance(
        self, state: Any, ids: Sequence[int], pictures: Sequence[Picture] = ()
    ) -> tuple[Any, Tensor]:
        """Return the state of a sequence after new tokens `ids`, and the last hidden state (H,) of the last of them.

        `state` is None for a new sequence, else what the last call returned; it may be changed in place. `pictures` are those
        of the new tokens, at positions in the whole sequence. No gradient is needed. For decoders with `keeps_state`.
        """
        raise NotImplementedError

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """Return the vocabulary logits (N, V) of last hidden states (N, H), in the dtype of `hidden`."""
