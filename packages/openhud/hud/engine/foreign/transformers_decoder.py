"""Decoders outside the Llama, Qwen2 and Qwen3 families: `transformers` models with OpenHUD's attention.

Any causal language model that uses `transformers`' attention interface runs here. Attention is replaced by that of packed
sequences or of the key-value cache, so the model samples with continuous batching and trains on packed sequences, more
slowly than `Decoder`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
)
from transformers.utils import logging

from hud.engine.config import ADAPTER_CONFIG, DecoderConfig, dequantization
from hud.engine.decoder import AttentionCache, Decoder
from hud.engine.foreign.verdicts import ForeignPath
from hud.engine.models.attention import chosen, packing_of
from hud.engine.models.routing import observe, recomputation, routed
from hud.errors import StoreError, UsageError

_OURS = "hud"
Attend = Callable[[int, Tensor, Tensor, Tensor, int | None], Tensor]
"""(layer, q (N, heads, D), k and v (N, kv_heads, D), window or None) to (N, heads * D)."""
Inputs = dict[str, Tensor]
"""Arguments of the layers for a pass's tokens."""


class TransformersDecoder(Decoder):
    """A `transformers` model behind the port of decoders."""

    name_prefix: ClassVar[str] = "causal."

    def __init__(self, config: DecoderConfig, causal: Any) -> None:
        super().__init__()
        self.config = config
        self.causal = causal
        self.dequantized = False
        """True: its folder has quantized weights, which it does not."""
        self.cache_places: dict[int, int] = {}
        """Place of each layer's keys and values in the cache, where it is not the layer's number."""
        shape = causal.config.get_text_config()
        observe(causal)
        self._softcap: float | None = getattr(shape, "final_logit_softcapping", None)
        # Granite divides its logits, Cohere multiplies them.
        self._scale = float(getattr(shape, "logit_scale", None) or 1.0) / float(
            getattr(shape, "logits_scaling", None) or 1.0
        )

    @property
    def device(self) -> torch.device:
        device: torch.device = self.causal.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.causal.dtype
        return dtype

    @property
    def checkpointed(self) -> bool:
        """True: recompute each layer in the backward pass instead of keeping its activations."""
        return bool(self.causal.is_gradient_checkpointing)

    @checkpointed.setter
    def checkpointed(self, wanted: bool) -> None:
        if wanted:
            self.causal.gradient_checkpointing_enable(
                {"use_reentrant": False, "context_fn": recomputation}
            )
        else:
            self.causal.gradient_checkpointing_disable()

    def hidden_packed(
        self,
        input_ids: Tensor,
        positions: Tensor,
        cu_seqlens: Tensor,
        prefixes: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Return the last hidden states (T, H) of packed sequences; see `Decoder.hidden_packed`."""
        return self.packed(tokens(input_ids, positions), cu_seqlens, prefixes, rows)

    def packed(
        self,
        inputs: Inputs,
        cu_seqlens: Tensor,
        prefixes: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Return the last hidden states (T, H) of packed sequences, by the layers' arguments."""
        packing = packing_of(cu_seqlens, prefixes)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
            del layer
            return packing.attend(q, k, v, window=window)

        settings = self.packed_settings(cu_seqlens, prefixes)
        return chosen(rows, self.computed(inputs, attend, **settings))

    def packed_settings(self, cu_seqlens: Tensor, prefixes: Tensor | None) -> dict[str, Any]:
        """Return further arguments of the layers in a packed pass."""
        del cu_seqlens, prefixes
        return {}

    def hidden_cached(self, input_ids: Tensor, positions: Tensor, cache: AttentionCache) -> Tensor:
        """Return the last hidden states (N, H) of new tokens, where `cache` says which and after what."""
        return self.cached(tokens(input_ids, positions), cache)

    def cached(self, inputs: Inputs, cache: AttentionCache) -> Tensor:
        """Return the last hidden states (N, H) of new tokens on top of a cache."""

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
            place = self.cache_places.get(layer, layer)
            cache.write(place, k, v)
            return cache.attend_within(place, q, window)

        settings = self.cache_settings(cache)
        if self.sampled_routes is None:
            return self.computed(inputs, attend, **settings)
        with routed() as routing:
            hidden = self.computed(inputs, attend, **settings)
        cache.write_experts(routing.chosen())
        return hidden

    def cache_settings(self, cache: AttentionCache) -> dict[str, Any]:
        """Return further arguments of the layers in a pass with a cache."""
        del cache
        return {}

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the vocabulary logits (N, V) of hidden states (N, H)."""
        logits: Tensor = self.causal.get_output_embeddings()(hidden) * self._scale
        if self._softcap is not None:
            logits = torch.tanh(logits / self._softcap) * self._softcap
        return logits

    def computed(self, inputs: Inputs, attend: Attend, **settings: Any) -> Tensor:
        """Return the last hidden states (N, H) of the layers, which attend by `attend`."""
        layers = layers_of(self.causal)
        output = layers(**inputs, use_cache=False, hud_attend=attend, **settings)
        hidden: Tensor = output.last_hidden_state[0]
        return hidden


def tokens(input_ids: Tensor, positions: Tensor) -> Inputs:
    """Return the layers' arguments for tokens (N,) at `positions` (N,)."""
    return {"input_ids": input_ids[None], "position_ids": positions[None]}


def layers_of(causal: Any) -> nn.Module:
    """Return the module of a causal model that turns token ids into last hidden states. Raises `UsageError` without one."""
    names = (causal.get_decoder(), causal.base_model, getattr(causal, "model", None))
    for layers in names:
        if not isinstance(layers, nn.Module) or layers is causal:
            continue
        # Some heads are called decoders too.
        if "input_ids" in inspect.signature(type(layers).forward).parameters:
            return layers
    raise UsageError(f"{type(causal).__name__} has no layers apart from its head.")


def attention_of(config: DecoderConfig, path: ForeignPath) -> str | dict[str, str] | None:
    """Return the `attn_implementation` of a path; None: what the class uses by default."""
    if path != "packed":
        return None
    return {"text_config": _OURS} if config.reads_pictures else _OURS


def load_transformers(
    folder: Path,
    config: DecoderConfig,
    path: ForeignPath,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
) -> TransformersDecoder:
    """Load a model that `transformers` knows, to be computed by `path`. Raises `StoreError` for one that it cannot load."""
    if (folder / ADAPTER_CONFIG).exists():
        # transformers would load the base model that it names, from any place.
        raise StoreError(f"{folder} is an adapter; add its base model.")
    progress: Any = logging
    progress.disable_progress_bar()  # It would break the progress display.
    settings: dict[str, Any] = {}
    try:
        quantization = getattr(_configuration(folder), "quantization_config", None)
        if quantization is not None:
            settings["quantization_config"] = dequantization(quantization)
        # Code that comes with weights is not run.
        result: Any = auto_class(config).from_pretrained(
            folder,
            output_loading_info=True,
            dtype=dtype,
            attn_implementation=attention_of(config, path),
            trust_remote_code=False,
            use_safetensors=True,
            local_files_only=True,
            **settings,
        )
    except Exception as error:  # transformers raises many kinds of errors
        raise StoreError(f"transformers cannot load {folder}: {error}") from error
    causal, report = result
    if report["missing_keys"]:
        # transformers would begin these at random.
        missing = min(report["missing_keys"])
        raise StoreError(f"{folder}: the weights do not fit its config.json: {missing} is missing.")
    decoder = decoder_of(config, causal.to(device), path, folder).eval()
    decoder.dequantized = bool(settings)
    return decoder


def auto_class(config: DecoderConfig) -> Any:
    return AutoModelForImageTextToText if config.reads_pictures else AutoModelForCausalLM


def decoder_of(
    config: DecoderConfig, causal: Any, path: ForeignPath, folder: Path
) -> TransformersDecoder:
    """Return the decoder of a folder's model, which was made with `attention_of(config, path)`."""
    if config.reads_pictures:
        # Derived from this module's.
        from hud.engine.foreign.hybrid_picture_decoder import HybridPictureDecoder
        from hud.engine.foreign.picture_decoder import PictureDecoder
        from hud.engine.pictures.processor import picture_processor

        if path == "packed":
            return HybridPictureDecoder(config, causal, picture_processor(folder))
        return PictureDecoder(config, causal, path, picture_processor(folder))
    if path == "packed" and config.recurrent is not None:
        from hud.engine.foreign.hybrid_decoder import HybridDecoder  # Derived from this module's.

        return HybridDecoder(config, causal)
    if path == "packed":
        return TransformersDecoder(config, causal)
    from hud.engine.foreign.state_decoder import StateDecoder  # Derived from this module's.

    return StateDecoder(config, causal, path)


def save_transformers(decoder: Decoder, folder: Path) -> None:
    """Write a decoder that `load_transformers` returned as a Hugging Face folder."""
    assert isinstance(decoder, TransformersDecoder)
    # The layout of the folder that it was loaded from, which may have one for quantized weights alone.
    decoder.causal.save_pretrained(folder, save_original_format=not decoder.dequantized)


def empty_transformers(folder: Path) -> nn.Module:
    """Return the modules of a folder's model on the default device, which is the meta device for no weights."""
    config = _configuration(folder)
    kind = auto_class(DecoderConfig.from_folder(folder))
    causal: nn.Module = kind.from_config(config, trust_remote_code=False)
    return causal


def _configuration(folder: Path) -> Any:
    return AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    hud_attend: Attend,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **settings: Any,
) -> tuple[Tensor, None]:
    """Attention of one layer, called by `transformers`: q (1, heads, N, D), k and v (1, kv_heads, N, D)."""
    del attention_mask, settings
    if softcap is not None or s_aux is not None:
        raise NotImplementedError("attention sinks" if softcap is None else "capped scores")
    q, k, v = (part[0].transpose(0, 1) for part in (query, key, value))
    if scaling is not None:
        q = q * (scaling * q.shape[-1] ** 0.5)  # Our attention divides by √D.
    layer = module.layer_idx
    assert isinstance(layer, int)
    attended = hud_attend(layer, q, k.contiguous(), v.contiguous(), sliding_window)
    return attended.view(1, q.shape[0], q.shape[1], -1), None


AttentionInterface.register(_OURS, _attention)
