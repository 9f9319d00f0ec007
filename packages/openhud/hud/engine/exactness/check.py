"""The check: the fastest path by which a small random model of a class computes what plain `transformers` computes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
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
from hud.engine.exactness.picture_batches import PictureChecks
from hud.engine.exactness.small_model import config_of, plain_model, reads_pictures
from hud.engine.foreign.hybrid_picture_decoder import HybridPictureDecoder
from hud.engine.foreign.picture_decoder import PictureDecoder
from hud.engine.foreign.transformers_decoder import load_transformers
from hud.engine.foreign.verdicts import ForeignPath, Verdict
from hud.engine.pictures.processor import PictureProcessor, picture_processor
from hud.engine.pretrained import load_decoder
from hud.errors import HudError, UsageError, reason_of

PATHS: tuple[ForeignPath, ...] = ("packed", "chunks", "tokens", "recomputed")
"""The fastest first."""
PICTURE_PATHS: tuple[ForeignPath, ...] = ("chunks", "turns", "recomputed")
"""Paths of classes with pictures, the fastest first."""


def check_folder(folder: Path) -> Verdict:
    """Check the class and configuration of a folder's model; its weights are not read."""
    try:
        config = config_of(folder)
        processor = picture_processor(folder) if reads_pictures(config) else None
        if processor is None and reads_pictures(config):
            config.architectures = None  # Without its processor a type of both is its text model.
    except UsageError as error:
        return Verdict(None, f"{error}".rstrip(".") + ".")
    return check_config(config, processor)


def check_config(config: Any, processor: PictureProcessor | None = None) -> Verdict:
    """Check a class with a configuration of `transformers`; one with pictures is given some with `processor`."""
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
            shape = replace(shape, reads_pictures=reads_pictures(config))
        except Exception as error:  # transformers raises many kinds of errors
            return Verdict(None, f"{name} cannot be saved and read again: {_sentence(error)}.")
        reasons: list[str] = []
        for path, decoder in _decoders(folder, shape, name, processor):
            reason = _difference(decoder, deepcopy(plain), processor)
            if reason is None:
                return Verdict(path, reasons[0] if reasons else "")
            reasons.append(reason)
    return Verdict(None, _refusal(name, reasons))


def _decoders(
    folder: Path, shape: DecoderConfig, name: str, processor: PictureProcessor | None
) -> Iterator[tuple[ForeignPath, Callable[[], Decoder]]]:
    """Yield the ways of computing a model, the fastest first."""
    if name in ARCHITECTURES:
        yield "packed", lambda: load_decoder(folder)
        return
    paths = PICTURE_PATHS if shape.reads_pictures else PATHS
    if shape.reads_pictures and shape.recurrent is not None:
        paths = ("packed", *paths)
    for path in paths:

        def load(path: ForeignPath = path) -> Decoder:
            decoder = load_transformers(folder, shape, path, dtype=torch.float32, device="cpu")
            if isinstance(decoder, PictureDecoder | HybridPictureDecoder):
                decoder.processor = processor
            return decoder

        yield path, load


def _difference(
    load: Callable[[], Decoder], plain: Any, processor: PictureProcessor | None
) -> str | None:
    """Return in which part a decoder differs from plain `transformers`, and by how much; None: in none."""
    part = "loading"
    try:
        decoder = load()
        checks: list[tuple[str, Callable[[Decoder, Any], None]]] = [
            ("packing", check_packing),
            ("gradient", check_gradient),
            ("cache", check_cache),
        ]
        if processor is not None:
            part = "pictures"
            pictures = PictureChecks(decoder, processor)
            checks += [("pictures", pictures.check_packing), ("pictures", pictures.check_gradient)]
            checks += [("pictures", pictures.check_cache)]
        checks.append(("adapter", check_adapter))
        for part, check in checks:  # noqa: B007
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
    text = reason_of(error)
    return text if isinstance(error, HudError) else f"{type(error).__name__}: {text}"
