"""Decoders with `transformers`' own attention and state: slow, and right where packing and our key-value cache are not.

Training computes one sequence at a time; sampling keeps one state of the model's own kind for each sequence. For linear
attention, state spaces, attention sinks, chunks, and whatever else `TransformersDecoder` does not compute exactly.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPast

from hud.engine.config import DecoderConfig
from hud.engine.decoder import AttentionCache
from hud.engine.foreign.transformers_decoder import TransformersDecoder, layers_of
from hud.engine.foreign.verdicts import ForeignPath
from hud.engine.models.attention import chosen
from hud.engine.models.routing import routed, routed_part
from hud.trace.sampled.pictures import Picture

_STATES = ("past_key_values", "cache_params", "state", "mems")
"""Names of a model's state, in its output and among its arguments."""

_hidden: ContextVar[Tensor | None] = ContextVar("_hidden", default=None)
"""Last hidden states (1, N, H) that stand in for those of the layers, while the head alone is computed."""


@dataclass
class _State:
    """A sequence so far."""

    ids: list[int]
    cache: Any = None
    """The model's own state after `ids`; None: computed from `ids` again."""
    experts: Tensor | None = None
    """(T, routers, k): router choices of `ids`, where they are kept."""


class StateDecoder(TransformersDecoder):
    """A `transformers` model as it is, one sequence at a time."""

    shares_prefixes: ClassVar[bool] = False
    keeps_state: ClassVar[bool] = True

    def __init__(self, config: DecoderConfig, causal: Any, path: ForeignPath) -> None:
        """`path`: what the model's own state can continue."""
        super().__init__(config, causal)
        self.path = path
        layers = self.find_layers(causal)
        layers.forward = _Layers(layers)
        self._layers = (layers,)  # In a tuple: it is a module of `causal` already.
        accepted = inspect.signature(type(layers).forward).parameters
        self._caches = "use_cache" in accepted or any(
            parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values()
        )

    def find_layers(self, causal: Any) -> nn.Module:
        """Return the module that turns inputs into last hidden states."""
        return layers_of(causal)

    def hidden_packed(
        self,
        input_ids: Tensor,
        positions: Tensor,
        cu_seqlens: Tensor,
        prefixes: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Return the last hidden states (T, H) of packed sequences; see `Decoder.hidden_packed`."""
        del positions
        assert prefixes is None
        bounds = cu_seqlens.tolist()
        parts = []
        for start, end in pairwise(bounds):
            with routed_part(start, end):
                parts.append(self._run(input_ids[start:end])[0])
        return chosen(rows, torch.cat(parts))

    def hidden_cached(self, input_ids: Tensor, positions: Tensor, cache: AttentionCache) -> Tensor:
        """Raise: its keys and values are its own; see `advance`."""
        raise NotImplementedError("This decoder keeps its own state.")

    def advance(
        self, state: Any, ids: Sequence[int], pictures: Sequence[Picture] = ()
    ) -> tuple[Any, Tensor]:
        if self.sampled_routes is None:
            return self._advanced(state, ids, pictures)
        with routed() as routing:
            state, hidden = self._advanced(state, ids, pictures)
        experts = routing.chosen()
        before = None if len(experts) == len(state.ids) else state.experts
        state.experts = experts if before is None else torch.cat((before, experts))
        return state, hidden

    def _advanced(
        self, state: Any, ids: Sequence[int], pictures: Sequence[Picture]
    ) -> tuple[Any, Tensor]:
        assert not pictures
        state = state or _State([])
        new = list(ids)
        first = not state.ids
        state.ids += new
        if self.path == "recomputed":
            hidden, _ = self._run(torch.tensor(state.ids, device=self.device))
            return state, hidden[-1]
        together = first or self.path == "chunks"
        for chunk in [new] if together else [[token] for token in new]:
            tokens = torch.tensor(chunk, device=self.device)
            hidden, state.cache = self._run(tokens, state.cache, cached=True)
        return state, hidden[-1]

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the vocabulary logits (N, V) of hidden states (N, H), by the model's own head."""
        token = _hidden.set(hidden[None])
        try:
            ids = torch.zeros(1, len(hidden), dtype=torch.long, device=hidden.device)
            logits: Tensor = self.causal(input_ids=ids).logits[0]
        finally:
            _hidden.reset(token)
        return logits

    def _run(
        self, ids: Tensor, cache: dict[str, Any] | None = None, *, cached: bool = False
    ) -> tuple[Tensor, dict[str, Any] | None]:
        """Return the last hidden states (T, H) of tokens (T,) after those in `cache`, and the cache with them."""
        settings: dict[str, Any] = {"use_cache": cached} if self._caches else {}
        output = self._layers[0](input_ids=ids[None], **settings, **(cache or {}))
        states = {name: output[name] for name in _STATES if cached and output.get(name) is not None}
        return output[0][0], states or None


class _HeadInput(BaseModelOutputWithPast):
    """Output of the layers when they are not computed: last hidden states, and None for everything else."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class _Layers:
    """The forward method of a model's layers; a copied model has a copy of its own."""

    def __init__(self, layers: nn.Module) -> None:
        self.layers = layers

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        hidden = _hidden.get()
        if hidden is not None:
            return _HeadInput(last_hidden_state=hidden)
        return type(self.layers).forward(self.layers, *arguments, **settings)
