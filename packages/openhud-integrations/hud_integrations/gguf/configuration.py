"""The shape of a GGUF file's model: `DecoderConfig` from its metadata and the names of its tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from hud.engine.config import DecoderConfig
from hud.engine.models.reference_decoder import rotary_frequencies
from hud_integrations.gguf.model_file import GgufFile

FAMILIES = ("llama", "qwen2", "qwen3")
"""Architectures, by their names in GGUF, which are those of `DecoderConfig.model_type`."""
FREQUENCIES = "rope_freqs.weight"
"""Tensor with the factor of each rotary wavelength: how a file holds the scaling of Llama 3."""
_LLAMA3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""Constants of the scaling in every published Llama 3; the file holds only its result."""


def decoder_config(file: GgufFile) -> DecoderConfig:
    """Return the shape of a file's model. Raises `UsageError` for one outside the Llama, Qwen2 and Qwen3 families."""
    if file.architecture not in FAMILIES:
        raise file.problem(
            f"holds a model of the architecture {file.architecture!r}; GGUF is read for {', '.join(FAMILIES)}"
        )
    if file.own("expert_count", 0):
        raise file.problem(
            f"holds a mixture of {file.own('expert_count')} experts; GGUF is read for dense models"
        )
    if "token_embd.weight" not in file.tensors:
        raise file.problem("holds no token_embd.weight, so no model")
    config = DecoderConfig.from_dict(_described(file), str(file.path))
    problem = config.problem()
    if problem is not None:
        raise file.problem(f"describes no model of its architecture: {problem.rstrip('.')}")
    return config


def _described(file: GgufFile) -> dict[str, Any]:
    """Return the `config.json` that a file's metadata amounts to."""
    heads, width = _needed(file, "attention.head_count"), _needed(file, "embedding_length")
    head_dim = file.own("attention.key_length") or file.own("rope.dimension_count")
    head_dim = head_dim or width // max(heads, 1)
    if file.own("rope.dimension_count", head_dim) != head_dim:
        raise file.problem("rotates a part of each head only, which is not supported")
    if file.own("attention.value_length", head_dim) != head_dim:
        raise file.problem("has values of another width than its keys, which is not supported")
    context = _needed(file, "context_length")
    if 0 < file.own("attention.sliding_window", 0) < context:
        raise file.problem("has sliding-window attention, which is not supported")
    theta = _decimal(file.own("rope.freq_base", 10_000.0))
    ends = [file.value(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom")]
    return {
        "architectures": [f"{file.architecture.capitalize()}ForCausalLM"],
        "vocab_size": int(file.tensors["token_embd.weight"].shape[-1]),
        "hidden_size": width,
        "intermediate_size": _needed(file, "feed_forward_length"),
        "num_hidden_layers": _needed(file, "block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": file.own("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": context,
        "rms_norm_eps": _decimal(_needed(file, "attention.layer_norm_rms_epsilon")),
        "rope_parameters": {"rope_theta": theta, **_scaling(file, theta, head_dim)},
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": file.architecture != "qwen2" and "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in file.tensors,
        "bos_token_id": file.value("tokenizer.ggml.bos_token_id"),
        "eos_token_id": list(dict.fromkeys(end for end in ends if end is not None)),
    }


def _needed(file: GgufFile, key: str) -> Any:
    value = file.own(key)
    if type(value) not in (int, float):
        raise file.problem(f"has no number for {file.architecture}.{key}")
    return value


def _decimal(value: float) -> float:
    """Return the shortest decimal that is the same float32: metadata holds 1e-05 as 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _scaling(file: GgufFile, theta: float, head_dim: int) -> dict[str, Any]:
    """Return the rotary scaling in `config.json`'s names. Raises `UsageError` for one that is not supported."""
    kind = file.own("rope.scaling.type", "none")
    if FREQUENCIES in file.tensors:
        factors = np.asarray(file.tensors[FREQUENCIES].data, dtype=np.float32)
        scaling = {"rope_type": "llama3", "factor": float(factors.max()), **_LLAMA3}
        expected = llama3_factors(scaling, theta, head_dim)
        if expected.shape != factors.shape or not np.allclose(expected, factors, rtol=1e-3):
            raise file.problem("scales its rotary wavelengths in a way that is not Llama 3's")
        return scaling
    if kind == "none":
        return {"rope_type": "default"}
    if kind == "linear":
        return {"rope_type": "linear", "factor": _decimal(file.own("rope.scaling.factor", 1.0))}
    raise file.problem(f"has the rotary scaling {kind!r}, which is not supported")


def llama3_factors(scaling: dict[str, Any], theta: float, head_dim: int) -> np.ndarray[Any, Any]:
    """Return the factor of each rotary wavelength, (head_dim / 2,) float32: `rope_freqs.weight` of a GGUF file."""
    unscaled = rotary_frequencies(head_dim, theta, None)
    return np.asarray(unscaled / rotary_frequencies(head_dim, theta, scaling))
