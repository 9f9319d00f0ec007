"""The weights of a GGUF file, unpacked a few rows at a time and written as safetensors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from gguf import MODEL_ARCH_NAMES, dequantize, get_tensor_name_map
from gguf.gguf_reader import ReaderTensor
from torch import Tensor

from hud.engine.config import DecoderConfig
from hud.engine.models.reference_decoder import ReferenceDecoder
from hud.engine.models.tensor_file import write_tensors
from hud.engine.pretrained import INDEX, WEIGHTS
from hud_integrations.gguf.configuration import FREQUENCIES
from hud_integrations.gguf.model_file import GgufFile

SHARD_BYTES = 1 << 30
"""Bytes of weights that are in memory at a time, and in one file, unless one tensor has more."""
PIECE_ELEMENTS = 1 << 24
"""Elements that are unpacked at a time."""
_UNREAD = (FREQUENCIES, ".attn_rot_embd.weight")
"""Ends of the names of tensors that are no weights."""


def gguf_names(config: DecoderConfig) -> dict[str, str]:
    """Return the GGUF name of each weight of a decoder, by its Hugging Face name."""
    architecture = next(key for key, name in MODEL_ARCH_NAMES.items() if name == config.model_type)
    table = get_tensor_name_map(architecture, config.num_hidden_layers)
    names = {}
    for name in expected_shapes(config):
        module, _, kind = name.rpartition(".")
        named = table.get_name(module)
        assert named is not None, name
        names[name] = f"{named}.{kind}"
    return names


def expected_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of each weight in a folder of this configuration."""
    with torch.device("meta"):
        state = ReferenceDecoder(config).state_dict()
    return {name: tuple(tensor.shape) for name, tensor in state.items()}


def row_order(
    name: str, config: DecoderConfig, *, packing: bool = False
) -> Callable[[Tensor], Tensor] | None:
    """Return the change of a weight's rows from GGUF to Hugging Face, or back (`packing`); None: their order is the same.

    llama.cpp rotates neighbouring rows of a head's queries and keys in the Llama family, where Hugging Face rotates
    its halves; files hold them in llama.cpp's order.
    """
    if config.model_type != "llama":
        return None
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    count = heads.get(name.split(".")[-2])
    if count is None:
        return None
    halves = (2, -1) if packing else (-1, 2)
    return lambda tensor: (
        tensor.reshape(count, *halves, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)
    )


def write_weights(file: GgufFile, config: DecoderConfig, folder: Path, dtype: torch.dtype) -> None:
    """Write a file's weights to a folder in `dtype`. Raises `UsageError` for weights of another shape, `OSError` for a full disk."""
    names, shapes = gguf_names(config), expected_shapes(config)
    _check_names(file, set(names.values()))
    for name, shape in shapes.items():
        read = tuple(int(size) for size in reversed(file.tensors[names[name]].shape))
        if read != shape:
            raise file.problem(f"has {names[name]} of shape {read} where its metadata says {shape}")
    sizes = {name: dtype.itemsize * int(np.prod(shape)) for name, shape in shapes.items()}
    free = shutil.disk_usage(folder).free
    if sum(sizes.values()) > free:
        raise OSError(f"its weights take {sum(sizes.values()):,} bytes and {free:,} are free")
    shards = _shards(sizes)
    weight_map = {}
    for number, shard in enumerate(shards, 1):
        path = folder / WEIGHTS
        if len(shards) > 1:
            path = folder / f"model-{number:05}-of-{len(shards):05}.safetensors"
        state = {name: _unpacked(file, names[name], name, config, dtype) for name in shard}
        write_tensors(state, path, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(shard, path.name))
    if len(shards) > 1:
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _check_names(file: GgufFile, expected: set[str]) -> None:
    names = {name for name in file.tensors if not name.endswith(_UNREAD)}
    if missing := sorted(expected - names):
        raise file.problem(f"lacks weights of its architecture: {missing[0]}")
    if further := sorted(names - expected):
        raise file.problem(f"holds weights that its architecture does not have: {further[0]}")


def _shards(sizes: dict[str, int]) -> list[list[str]]:
    """Return the names of the weights in each file, in order."""
    shards: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if filled and filled + size > SHARD_BYTES:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    return shards


def _unpacked(
    file: GgufFile, stored: str, name: str, config: DecoderConfig, dtype: torch.dtype
) -> Tensor:
    """Return one weight, rounded from float32 to `dtype`."""
    packed = file.tensors[stored]
    shape = [int(size) for size in reversed(packed.shape)]
    weight = torch.empty(shape, dtype=dtype)
    rows = max(1, PIECE_ELEMENTS // max(1, int(np.prod(shape[1:]))))
    for start in range(0, shape[0], rows):
        piece = _dequantized(file, packed, slice(start, start + rows))
        weight[start : start + rows] = torch.from_numpy(piece)
    order = row_order(name, config)
    return weight if order is None else order(weight).contiguous()


def _dequantized(
    file: GgufFile, packed: ReaderTensor, rows: slice
) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    try:
        values = dequantize(packed.data[rows], packed.tensor_type)
    except (NotImplementedError, KeyError) as error:
        raise file.problem(
            f"holds {packed.name} in the quantization {packed.tensor_type.name}, which the gguf package cannot unpack"
        ) from error
    # A view of the file is read-only, which torch warns of.
    return np.array(values, dtype=np.float32)
