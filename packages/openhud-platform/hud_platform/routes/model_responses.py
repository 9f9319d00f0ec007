"""Models and checkpoints in responses, with the keys that HUD's client expects and further ones of this platform."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

from hud.engine.config import DecoderConfig
from hud.engine.foreign.verdicts import recorded_verdict
from hud.errors import HudError
from hud.trace import dashed
from hud_platform.gateway.chat_formats import format_of
from hud_platform.models.provider_models import sdk_agent_type
from hud_platform.models.records import PROMOTION, CheckpointRecord, ModelRecord


def shown_model(model: ModelRecord) -> dict[str, Any]:
    """Return a model as clients get it."""
    return {
        "id": dashed(model.id),
        "name": model.name,
        "model_name": model.slug,
        "sdk_agent_type": sdk_agent_type(model),
        "is_trainable": model.config.provider is None,
        "provider": {
            "name": "openhud" if model.config.provider is None else model.config.provider.dialect
        },
        "created_at": model.created_at.isoformat(),
        "kind": model.kind,
        "base_model_id": None if model.base_model_id is None else dashed(model.base_model_id),
        "head_checkpoint_id": model.head_checkpoint_id,
        "config": model.config.model_dump(mode="json"),
    }


def shown_with_folder(model: ModelRecord) -> dict[str, Any]:
    """Return a model with `shows_tools` (its chat template writes tools), the name of its `tool_format`, and its `path`.

    `path` is `hud.engine.foreign.verdicts.ForeignPath`. Reads files; each is null if unknown.
    """
    shows_tools = tool_format = path = None
    if model.config.provider is None:
        with suppress(HudError):  # Its first use names the problem.
            chat = format_of(model.folder, model.config.tool_call_parser).chat
            shows_tools, tool_format = chat.shows_tools, chat.tool_format.names[0]
            verdict = recorded_verdict(model.folder, DecoderConfig.from_folder(model.folder))
            path = None if verdict is None else verdict.path
    formats = {"shows_tools": shows_tools, "tool_format": tool_format}
    return {**shown_model(model), **formats, "path": path}


def shown_checkpoint(node: CheckpointRecord, model: ModelRecord) -> dict[str, Any]:
    """Return a checkpoint of a model as clients get it."""
    return {
        "id": node.id,
        "name": node.name,
        "checkpoint_name": node.name,
        "prev_model_checkpoint_id": node.parent_id,
        "is_active": node.id == model.head_checkpoint_id,
        "created_at": node.created_at.isoformat(),
        "num_traces": node.num_traces,
        "num_datums": node.num_datums,
        "num_tokens": node.num_tokens,
        "mean_reward": node.mean_reward,
        "learning_rate": node.learning_rate,
        "loss_fn": node.loss_fn,
        # HUD's client accepts only numbers, not null.
        "metrics": {
            name: float(value)
            for name, value in node.metrics.items()
            if isinstance(value, int | float) and math.isfinite(value)
        },
        "step": node.step,
        "training_step": node.training_step,
        "idempotency_key": node.metrics.get("idempotency_key"),
        "promotion": node.metrics.get(PROMOTION),
        "pruned": node.folder is None,
        "system_prompt": node.system_prompt,
    }
