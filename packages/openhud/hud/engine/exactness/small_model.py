"""A small random model of a class: plain `transformers`, attention as it is written, in float32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from hud.engine.config import ARCHITECTURES
from hud.engine.exactness.small_configs import parameters_of, small_configs
from hud.errors import UsageError, reason_of

MOST_PARAMETERS = 30_000_000
PICTURE_CONTEXT = 8192
"""Positions of a small model with pictures, which have as many tokens as in a large one."""
_NOISE = 0.05
"""Standard deviation of what is added to every parameter: many begin at 0 or 1, and would hide what is left out."""


def plain_model(config: Any) -> Any:
    """Return a small random model of a configuration's class. Raises `UsageError` where none can be made."""
    problem = "its configuration could not be made small"
    for small in small_configs(config):
        if reads_pictures(small):
            small.get_text_config().max_position_embeddings = PICTURE_CONTEXT
        try:
            with torch.device("meta"):
                size = parameters_of(_of_config(small))
            if size > MOST_PARAMETERS:
                problem = f"a small model of it still has {size:,} parameters"
                continue
            return randomized(_of_config(small))
        except Exception as error:  # transformers raises many kinds of errors
            problem = f"{type(error).__name__}: {reason_of(error)}"
    raise UsageError(f"no small model of it can be made ({problem})")


def reads_pictures(config: Any) -> bool:
    """Return whether a configuration is of a class with pictures. Some types have a class for text alone, too: theirs by default."""
    kind, name = type(config), (getattr(config, "architectures", None) or [None])[0]
    if kind not in AutoModelForImageTextToText._model_mapping:
        return False
    if kind not in AutoModelForCausalLM._model_mapping:
        return True
    pictures: Any = AutoModelForImageTextToText._model_mapping[kind]
    return name == pictures.__name__ or pictures is AutoModelForCausalLM._model_mapping[kind]


def _of_config(config: Any) -> Any:
    auto: Any = AutoModelForImageTextToText if reads_pictures(config) else AutoModelForCausalLM
    return auto.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()


@torch.no_grad()
def randomized(model: Any) -> Any:
    """Return a model whose parameters have all been moved a little, and that has computed something."""
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * _NOISE)
    logits = model(input_ids=torch.arange(5)[None], use_cache=False).logits
    if not torch.isfinite(logits).all():
        raise ValueError("its logits are not finite")
    return model


def config_of(folder: Path) -> Any:
    """Return the configuration of a folder, as `transformers` reads it. Raises `UsageError` for one that it cannot read."""
    try:
        raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        family = ARCHITECTURES.get(str((raw.get("architectures") or [None])[0]))
        # Our decoders read it by its architecture.
        if family is not None and "model_type" not in raw:
            return AutoConfig.for_model(family, **raw)
        return AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # transformers raises many kinds of errors
        reason = " ".join(str(error).split())
        raise UsageError(f"transformers cannot read its configuration ({reason})") from error
