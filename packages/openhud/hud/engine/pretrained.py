"""Decoders from and to Hugging Face folders."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from hud.engine.config import DecoderConfig
from hud.engine.decoder import Decoder
from hud.engine.device_memory import TRAINING, within_memory
from hud.engine.foreign.verdicts import exact_path
from hud.engine.models.reference_decoder import ReferenceDecoder, inverse_frequencies
from hud.engine.models.tensor_file import write_tensors
from hud.errors import ConflictError, NotFoundError, StoreError, UsageError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
_TIED = "lm_head.weight"
"""Weight that a model with tied embeddings does not use."""
_FEWER = f"Load fewer models at a time, end other programs on the GPU, or lower {TRAINING}."


@within_memory("the weights of a model", _FEWER)
def load_decoder(
    folder: Path, *, dtype: torch.dtype | None = None, device: torch.device | str = "cpu"
) -> Decoder:
    """Load the decoder of a folder, in the type of its weights unless `dtype` says another.

    Raises `NotFoundError` for a folder without a model, `UsageError` for an architecture that cannot be
    computed, or not exactly, and `StoreError` for files that are damaged.
    """
    config = DecoderConfig.from_folder(folder)
    stored = DTYPES.get(config.dtype)
    if stored is None:
        raise UsageError(f"{folder}: weights of type {config.dtype} are not supported.")
    if not config.ours:
        weight_files(folder)
        # Loads transformers.
        from hud.engine.foreign.transformers_decoder import load_transformers

        path = exact_path(folder, config)
        return load_transformers(folder, config, path, dtype=dtype or stored, device=device)
    with torch.device("meta"):
        decoder = ReferenceDecoder(config)
    state = read_weights(folder, device)
    if config.tie_word_embeddings:
        state.pop(_TIED, None)
    _refuse_unfit(folder, decoder, {name: tuple(tensor.shape) for name, tensor in state.items()})
    state = {name: tensor.to(dtype or stored) for name, tensor in state.items()}
    decoder.load_state_dict(state, assign=True)
    decoder.rotary = inverse_frequencies(config).to(device)
    return decoder.eval()


def empty_decoder(folder: Path) -> torch.nn.Module:
    """Return the modules of a folder's decoder, on the meta device: names and shapes without weights."""
    config = DecoderConfig.from_folder(folder)
    with torch.device("meta"):
        if config.ours:
            return ReferenceDecoder(config)
        # Loads transformers.
        from hud.engine.foreign.transformers_decoder import empty_transformers

        return empty_transformers(folder)


def check_weights(folder: Path) -> None:
    """Raise `NotFoundError` or `StoreError` for weights that `load_decoder` would refuse, by their names and shapes; none is read."""
    config = DecoderConfig.from_folder(folder)
    shapes: dict[str, tuple[int, ...]] = {}
    for name in weight_files(folder):
        with _opened(folder / name) as file:
            shapes |= {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
    if not config.ours:
        return  # Names in files are not those of modules everywhere.
    if config.tie_word_embeddings:
        shapes.pop(_TIED, None)
    _refuse_unfit(folder, empty_decoder(folder), shapes)


def _refuse_unfit(
    folder: Path, decoder: torch.nn.Module, shapes: dict[str, tuple[int, ...]]
) -> None:
    """Raise `StoreError` for weights that are not those of a decoder."""
    expected = {name: tuple(tensor.shape) for name, tensor in decoder.state_dict().items()}
    odd = sorted(expected.keys() - shapes.keys()) or sorted(shapes.keys() - expected.keys())
    if odd:
        what = "is missing" if odd[0] in expected else "is not of this architecture"
        raise StoreError(f"{folder}: the weights do not fit its config.json: {odd[0]} {what}.")
    for name, shape in shapes.items():
        if shape != expected[name]:
            raise StoreError(
                f"{folder}: {name} has shape {shape}, config.json says {expected[name]}."
            )


def weight_files(folder: Path) -> list[str]:
    """Return the names of a folder's safetensors files. Raises `StoreError` for an index that is none, or that names others.

    An index comes with downloaded weights, and other models are on the same disk.
    """
    index = folder / INDEX
    if not index.exists():
        return [WEIGHTS]
    try:
        files = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        outside = [name for name in files if Path(name).name != name]
    except (AttributeError, LookupError, TypeError, ValueError, OSError, RecursionError) as error:
        raise StoreError(
            f"{index} is no index of weights ({type(error).__name__}: {error})."
        ) from error
    if outside:
        raise StoreError(f"{index} names {outside[0]!r}, a file outside of its folder.")
    return files


def weight_bytes(folder: Path, dtype: torch.dtype | None = None) -> int:
    """Return about how many bytes a folder's weights take in `dtype`; None: in the type of its files."""
    if _is_quantized(folder):
        count = sum(parameter.numel() for parameter in empty_decoder(folder).parameters())
        return count * (dtype or DTYPES[DecoderConfig.from_folder(folder).dtype]).itemsize
    files = [folder / name for name in weight_files(folder)]
    total = sum(path.stat().st_size for path in files if path.is_file())
    stored = DTYPES.get(DecoderConfig.from_folder(folder).dtype)
    if dtype is None or stored is None:
        return total
    return total * dtype.itemsize // stored.itemsize


def weight_count(folder: Path) -> int:
    """Return about how many parameters a folder's weights have; 0 without files."""
    return weight_bytes(folder, torch.uint8)


def _is_quantized(folder: Path) -> bool:
    raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return bool(raw.get("quantization_config"))


def read_weights(folder: Path, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """Return every tensor of a folder's safetensors files. Raises `NotFoundError` for none, `StoreError` if damaged."""
    state: dict[str, Tensor] = {}
    for name in weight_files(folder):
        with _opened(folder / name, device) as file:
            for key in file.keys():  # noqa: SIM118 - not a dict
                state[key] = file.get_tensor(key)
    return state


@contextmanager
def _opened(path: Path, device: torch.device | str = "cpu") -> Iterator[Any]:
    """Open a file of weights. Raises `NotFoundError` for none, `StoreError` if it is damaged."""
    if not os.path.isfile(path):  # Opening a pipe would wait for its writer.
        raise NotFoundError(
            f"{path.parent} has no {path.name}; a model folder keeps its weights as safetensors."
        )
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            yield file
    except (SafetensorError, OSError, ValueError) as error:
        raise StoreError(
            f"{path} is damaged: {error}. Restore it, or move the head to another checkpoint."
        ) from error


@torch.no_grad()
@within_memory("the weights of a checkpoint", _FEWER)
def load_weights(decoder: Decoder, folder: Path) -> None:
    """Put a folder's weights into a decoder of the same shape, in place. Raises `ConflictError` for another shape."""
    if decoder.config.ours:
        # In the host's memory: a device has the weights once, and keys and values beside them.
        state = read_weights(folder)
    else:  # Names in files are not those of modules everywhere: `transformers` knows.
        # Loads transformers.
        from hud.engine.foreign.transformers_decoder import load_transformers

        # By the decoder's class: a folder of weights alone does not tell whether it reads pictures.
        loaded = load_transformers(
            folder, decoder.config, "recomputed", dtype=decoder.dtype, device="cpu"
        )
        state = dict(loaded.named_parameters())
    for name, parameter in decoder.named_parameters():
        tensor = state.get(name)
        if tensor is None or tensor.shape != parameter.shape:
            raise ConflictError(
                f"{folder} does not hold weights of this model's shape ({name}); it cannot become its head."
            )
        parameter.copy_(tensor)


def save_decoder(decoder: Decoder, folder: Path) -> None:
    """Write `config.json` and the weights to a folder that `transformers` and `load_decoder` read."""
    folder.mkdir(parents=True, exist_ok=True)
    if not decoder.config.ours:
        # Loads transformers.
        from hud.engine.foreign.transformers_decoder import save_transformers

        save_transformers(decoder, folder)
        return
    target = decoder.dtype
    names = {value: key for key, value in DTYPES.items()}
    config = replace(decoder.config, dtype=names[target])
    state = {
        name: tensor.detach().to(target).cpu().contiguous()
        for name, tensor in decoder.state_dict().items()
    }
    write_tensors(state, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / "config.json").write_text(
        json.dumps(config.to_dict(), indent=2) + "\n", encoding="utf-8"
    )
