"""Models of which only the text model is trained: exported, they are whole again, with the base's vision tower."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterable
from pathlib import Path

from safetensors import safe_open
from torch import Tensor

from hud.engine.models.tensor_file import write_tensors
from hud.engine.pretrained import INDEX, WEIGHTS, read_weights, weight_files

LEFT_OUT = "mtp."
"""Prefix of the weights of multi-token prediction heads, which predict the tokens of the untrained model."""


def complete(folder: Path, base: Path) -> bool:
    """Add to a folder with the text model of `base` all other weights of it, but for `LEFT_OUT`, and its configuration.

    Returns False, with the folder as it was, where the text model has weights that `base` has under no such name.
    """
    trained = read_weights(folder)
    places = _places(base)
    prefix = _prefix(trained, places)
    if prefix is None:
        return False
    trained = {prefix + name: tensor for name, tensor in trained.items()}
    for path in [*folder.glob("*.safetensors"), folder / INDEX]:
        path.unlink(missing_ok=True)
    exported = {name: file for name, file in places.items() if not name.startswith(LEFT_OUT)}
    for file_name in sorted(set(exported.values())):
        names = [name for name, file in exported.items() if file == file_name]
        write_tensors(
            _merged(base / file_name, names, trained), folder / file_name, metadata={"format": "pt"}
        )
    if set(exported.values()) != {WEIGHTS}:
        total = sum((folder / file_name).stat().st_size for file_name in set(exported.values()))
        index = {"metadata": {"total_size": total}, "weight_map": exported}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    shutil.copyfile(base / "config.json", folder / "config.json")
    return True


def is_part_of(folder: Path, base: Path) -> bool:
    """Return True for a folder with a text model of another class than the whole in `base`, whose weights are not quantized."""
    first, second = (
        json.loads((place / "config.json").read_text(encoding="utf-8")) for place in (folder, base)
    )
    return bool(
        first.get("architectures") != second.get("architectures")
        and not second.get("quantization_config")
    )


def _prefix(trained: Iterable[str], places: Collection[str]) -> str | None:
    """Return what the whole model puts before the names of its text model; None: it has other names."""
    first, *others = trained
    for name in places:
        prefix = name.removesuffix(first)
        if name.endswith(first) and all(prefix + other in places for other in others):
            return prefix
    return None


def _places(folder: Path) -> dict[str, str]:
    """Return the file of each weight of a folder."""
    places: dict[str, str] = {}
    for file_name in weight_files(folder):
        with safe_open(folder / file_name, framework="pt") as file:
            places |= dict.fromkeys(file.keys(), file_name)
    return places


def _merged(path: Path, names: list[str], trained: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return weights of a file, those that were trained in their place."""
    with safe_open(path, framework="pt") as file:
        return {name: trained[name] if name in trained else file.get_tensor(name) for name in names}
