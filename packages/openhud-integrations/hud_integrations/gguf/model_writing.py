"""A Hugging Face folder as one GGUF file: metadata, tokenizer and weights, in llama.cpp's layout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType
from safetensors import safe_open
from torch import Tensor

from hud.engine.config import DecoderConfig
from hud.engine.pretrained import weight_files
from hud.errors import UsageError
from hud_integrations.gguf.configuration import FAMILIES, FREQUENCIES, llama3_factors
from hud_integrations.gguf.tensors import gguf_names, row_order
from hud_integrations.gguf.vocabulary_writing import vocabulary_metadata

TYPES = {
    "float32": (GGMLQuantizationType.F32, LlamaFileType.ALL_F32),
    "float16": (GGMLQuantizationType.F16, LlamaFileType.MOSTLY_F16),
    "bfloat16": (GGMLQuantizationType.BF16, LlamaFileType.MOSTLY_BF16),
}
"""Types of matrices in a file, by the names of torch; vectors are float32 in every file, as llama.cpp computes them."""


def write_model_file(folder: Path, path: Path, *, dtype: str | None = None) -> None:
    """Write the model of a Hugging Face folder to a new GGUF file; `dtype` None: that of the folder.

    Raises `UsageError` for a model that the format cannot hold exactly.
    """
    config = DecoderConfig.from_folder(folder)
    if config.model_type not in FAMILIES:
        raise UsageError(
            f"GGUF is written for {', '.join(FAMILIES)}; this model's architecture is {config.model_type}."
        )
    dtype = dtype or config.dtype
    if dtype not in TYPES:
        raise UsageError(f"GGUF is written in {', '.join(TYPES)}; {dtype} is none of them.")
    kind, file_type = TYPES[dtype]
    metadata = {
        "general.type": "model",
        "general.name": path.stem,
        "general.file_type": int(file_type),
        "general.quantization_version": 2,
        **{f"{config.model_type}.{key}": value for key, value in _shape(config).items()},
        **vocabulary_metadata(folder, config),
    }
    with _writer(path, config.model_type) as writer:
        for key, value in metadata.items():
            _add(writer, key, value)
        _write_tensors(writer, folder, config, kind)


@contextmanager
def _writer(path: Path, architecture: str) -> Iterator[GGUFWriter]:
    writer = GGUFWriter(path, architecture)
    try:
        yield writer
    finally:
        writer.close()


def _shape(config: DecoderConfig) -> dict[str, Any]:
    """Return the metadata under the architecture's own prefix."""
    shape: dict[str, Any] = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope.freq_base": float(config.rope_theta),
        "rope.dimension_count": config.head_dim,
        "vocab_size": config.vocab_size,
    }
    scaling = config.rope_scaling
    if scaling is not None and scaling["rope_type"] == "linear":
        shape["rope.scaling.type"] = "linear"
        shape["rope.scaling.factor"] = float(scaling["factor"])
    return shape


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _write_tensors(
    writer: GGUFWriter, folder: Path, config: DecoderConfig, kind: GGMLQuantizationType
) -> None:
    """Write a folder's weights, one at a time in memory."""
    names = gguf_names(config)
    scaling = config.rope_scaling
    factors = None
    if scaling is not None and scaling["rope_type"] == "llama3":
        factors = llama3_factors(scaling, config.rope_theta, config.head_dim).astype(np.float32)
        writer.add_tensor_info(FREQUENCIES, factors.shape, factors.dtype, factors.nbytes)
    for name, shape, _ in _weights(folder, names):
        stored = kind if len(shape) > 1 else GGMLQuantizationType.F32
        size = int(np.prod(shape)) * (4 if stored == GGMLQuantizationType.F32 else 2)
        writer.add_tensor_info(names[name], shape, np.dtype(np.float32), size, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    if factors is not None:
        writer.write_tensor_data(factors)
    for name, shape, read in _weights(folder, names):
        stored = kind if len(shape) > 1 else GGMLQuantizationType.F32
        writer.write_tensor_data(_packed(name, read(), config, stored))


def _weights(folder: Path, names: dict[str, str]) -> Iterator[tuple[str, list[int], Any]]:
    """Yield each weight's name, its shape, and what reads it, in the order of the files."""
    for file_name in weight_files(folder):
        with safe_open(folder / file_name, framework="pt") as file:
            for name in sorted(set(file.keys()) & names.keys()):
                yield (
                    name,
                    file.get_slice(name).get_shape(),
                    lambda name=name: file.get_tensor(name),
                )


def _packed(
    name: str, weight: Tensor, config: DecoderConfig, kind: GGMLQuantizationType
) -> np.ndarray[Any, Any]:
    """Return a weight in llama.cpp's order of rows and in the type of the file."""
    order = row_order(name, config, packing=True)
    if order is not None:
        weight = order(weight)
    weight = weight.contiguous()
    if kind == GGMLQuantizationType.F32:
        return weight.float().numpy()
    if kind == GGMLQuantizationType.BF16:
        return weight.bfloat16().view(torch.uint8).numpy()
    half = weight.half()
    if bool(torch.isinf(half).any()):
        raise UsageError(
            f"{name} has values beyond float16; write the file in bfloat16 or float32."
        )
    return half.numpy()
