"""The check: the fastest path by which a small random model of a class computes what plain `transformers` computes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch

from hud.engine.config import ARCHITECTURES, DecoderConfig
from hud.engine.decoder import Decoder
from hud.engine.exactness.batches import (
    Difference,
    check_adapter,
    check_cache,
    check_gradient,
    check_packing,
)
from hud.engine.exactness.small_model import config_of, plain_model
from hud.engine.foreign.transformers_decoder import load_transformers
from hud.engine.foreign.verdicts import ForeignPath, Verdict
from hud.engine.pretrained import load_decoder
from hud.errors import HudError, UsageError

PATHS: tuple[ForeignPath, ...] = ("packed", "chunks", "tokens", "recomputed")
"""The fastest first."""


def check_folder(folder: Path) -> Verdict:
    """Check the class and configuration of a folder's model; its weights are not read."""
    try:
        config = config_of(folder)
    except UsageError as error:
        return Verdict(None, f"{error}.")
    return check_config(config)


def check_config(config: Any) -> Verdict:
    """Check a class with a configuration of `transformers`."""
    try:
        plain = plain_model(config)
    except UsageError as error:
        return Verdict(None, f"{_class_name(config)} cannot be checked: {error}.")
    name = type(plain).__name__
    with tempfile.TemporaryDirectory(prefix="hud-exactness-") as place:
        folder = Path(place)
        try:
            plain.save_pretrained(folder)
            shape = DecoderConfig.from_folder(folder)
        except Exception as error:  # transformers raises many kinds of errors
            return Verdict(None, f"{name} cannot be saved and read again: {_sentence(error)}.")
        reasons: list[str] = []
        for path, decoder in _decoders(folder, shape, name):
            reason = _difference(decoder, deepcopy(plain))
            if reason is None:
                return Verdict(path, reasons[0] if reasons else "")
            reasons.append(reason)
    return Verdict(None, _refusal(name, reasons))


def _decoders(
    folder: Path, shape: DecoderConfig, name: str
) -> Iterator[tuple[ForeignPath, Callable[[], Decoder]]]:
    """Yield the ways of computing a model, the fastest first."""
    if name in ARCHITECTURES:
        yield "packed", lambda: load_decoder(folder)
        return
    for path in PATHS:

        def load(path: ForeignPath = path) -> Decoder:
            return load_transformers(folder, shape, path, dtype=torch.float32, device="cpu")

        yield path, load


def _difference(load: Callable[[], Decoder], plain: Any) -> str | None:
    """Return in which part a decoder differs from plain `transformers`, and by how much; None: in none."""
    part = "loading"
    try:
        decoder = load()
        for part, check in (  # noqa: B007
            ("packing", check_packing),
            ("gradient", check_gradient),
            ("cache", check_cache),
            ("adapter", check_adapter),
        ):
            check(decoder, plain)
    except Difference as error:
        return f"{error.part} ({error.detail})"
    except Exception as error:  # transformers raises many kinds of errors
        return f"{part} ({_sentence(error)})"
    return None


def _refusal(name: str, reasons: list[str]) -> str:
    return f"{name} is not computed as by transformers: {reasons[-1]}. Use a model of a class that docs/models.md lists as exact."


def _class_name(config: Any) -> str:
    names = getattr(config, "architectures", None)
    return names[0] if names else type(config).__name__


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split())[:300].rstrip(".")
    return text if isinstance(error, HudError) else f"{type(error).__name__}: {text}"
