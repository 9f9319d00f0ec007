"""`LivePolicy`: the weights that a TRL trainer updates, sampled by our engine.

A model of the Llama, Qwen2 and Qwen3 families, and any other that `transformers` computes, shares its memory with the
sampler. A PEFT model has its adapter added to a copy before each batch of rollouts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hud.engine.chat.chat_format import ChatFormat
from hud.engine.config import DecoderConfig
from hud.engine.decoder import Decoder
from hud.engine.foreign.verdicts import ForeignPath, exact_path
from hud.engine.models.reference_decoder import ReferenceDecoder, inverse_frequencies
from hud.engine.policy import Policy
from hud.engine.sample.options import SamplerOptions
from hud.errors import UsageError

CACHE_BYTES = 2 << 30
"""Key-value cache of a policy whose trainer is TRL: what that takes of a GPU is not known here."""


class LivePolicy:
    """A policy over the weights of a model in training."""

    def __init__(self, model: Any, tokenizer: Any, *, slots: int) -> None:
        """`model`: a `PreTrainedModel` or a PEFT model of one. `slots`: most sequences that are sampled together.

        Raises `UsageError` for weights that are sharded over processes, and for a class that is not computed exactly.
        """
        self._model = model
        self._whole = model.get_base_model() if _is_peft(model) else model
        if any(parameter.numel() == 0 for parameter in model.parameters()):
            raise UsageError(
                "HudSpec samples from whole weights, and this model's are sharded (ZeRO-3 or FSDP); "
                "train with DDP or in one process, or train with `hud train`."
            )
        with tempfile.TemporaryDirectory(prefix="hud-trl-") as name:
            folder = Path(name)
            self._whole.config.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            config = DecoderConfig.from_folder(folder)
            path: ForeignPath = "packed" if config.ours else exact_path(folder, config)
            self._decoder = self._sharing_decoder(config, path, folder)
            self.policy = Policy(
                self._decoder,
                ChatFormat(folder, config),
                sampling=SamplerOptions(slots=slots, cache_bytes=CACHE_BYTES),
            )

    def refresh(self, version: str) -> None:
        """Sample from the weights as they are now: cached keys and values of older ones are dropped."""
        with self.policy.exclusive():
            if _is_peft(self._model):
                with torch.no_grad():
                    own = dict(self._decoder.named_parameters())
                    for name, tensor in merged_weights(self._model):
                        if name in own:
                            own[name].copy_(tensor)
            self.policy.checkpoint = version

    def _sharing_decoder(self, config: DecoderConfig, path: ForeignPath, folder: Path) -> Decoder:
        if _is_peft(self._model):
            state = {name: tensor.clone() for name, tensor in merged_weights(self._model)}
        else:
            state = {name: tensor.detach() for name, tensor in self._model.state_dict().items()}
        device = self._whole.device
        if not config.ours:
            return _transformers_decoder(self._whole, config, path, folder, state)
        if config.tie_word_embeddings:
            state.pop("lm_head.weight", None)
        with torch.device("meta"):
            decoder = ReferenceDecoder(config)
        decoder.load_state_dict(state, assign=True)
        decoder.rotary = inverse_frequencies(config).to(device)
        decoder.requires_grad_(False).eval()
        return decoder


def merged_weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the base model's parameters by name, each with its adapter's delta added (PEFT's LoRA family)."""
    layers = dict(model.get_base_model().named_modules())
    for name, parameter in model.get_base_model().named_parameters():
        if "lora_" in name:
            continue
        tensor = parameter.detach()
        owner, _, leaf = name.rpartition(".base_layer.")
        if owner:
            layer = layers[owner]
            if leaf == "weight":
                for adapter in layer.active_adapters:
                    tensor = tensor + layer.get_delta_weight(adapter).to(tensor.dtype)
            name = f"{owner}.{leaf}"
        yield name, tensor


def _transformers_decoder(
    model: Any, config: DecoderConfig, path: ForeignPath, folder: Path, state: dict[str, Tensor]
) -> Decoder:
    # Registers our attention.
    from hud.engine.foreign.transformers_decoder import attention_of, auto_class, decoder_of

    make: Any = auto_class(config).from_config
    attention = attention_of(config, path)
    with model.device:
        causal = make(model.config, attn_implementation=attention, dtype=model.dtype)
    causal.load_state_dict(state, assign=True)
    causal.tie_weights()
    decoder: Decoder = decoder_of(config, causal, path, folder).requires_grad_(False).eval()
    return decoder


def _is_peft(model: Any) -> bool:
    return hasattr(model, "get_base_model")
