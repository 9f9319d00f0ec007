"""Policies of models that servers sample while this platform trains them, by a plug of `hud.samplers`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from hud.engine.backends.registered import servers_named
from hud.engine.backends.sampling_servers import ServedPolicy
from hud.engine.chat.chat_format import ChatFormat
from hud.engine.policy import Policy
from hud.engine.pretrained import load_decoder
from hud.errors import UsageError
from hud_platform.access.secrets import Secrets
from hud_platform.models.records import ModelRecord, ServersConfig
from hud_platform.store.tables import LOCAL_TEAM

if TYPE_CHECKING:
    from hud.engine.lora import LoraConfig
    from hud_platform.models.registry import Registry

PUBLISHED = "published"
"""Folder next to a model's checkpoints for weights that servers load before a checkpoint is saved."""


def policy_on_servers(
    registry: Registry,
    model: ModelRecord,
    folder: Path,
    lora: LoraConfig | None,
    *,
    dtype: torch.dtype,
    device: str,
) -> Policy:
    """Load a model whose policy is sampled on servers. The first request to them is sent when the checkpoint is set."""
    config = model.config.servers
    assert config is not None
    decoder = load_decoder(folder, dtype=dtype, device=device)
    chat = ChatFormat(folder, decoder.config, tool_call_parser=model.config.tool_call_parser)

    def saved(version: str | None) -> Path | None:
        """Return the folder of a version that is on disk already, else None."""
        if version is None:
            return None if lora is not None else model.folder
        if not registry.tree.has(version):
            return None
        weights = registry.weights(model, version)
        return weights.folder if lora is None else weights.adapter

    secrets = Secrets(registry.home, model.team_id)
    served = ServedPolicy(
        decoder,
        lora,
        # Adapter names are global to a server: other platforms may use the same one.
        name=f"hud-{model.id[:12]}",
        published=registry.home / "models" / model.id / PUBLISHED,
        saved=saved,
        urls=config.urls,
        settings=config.settings,
        key=_key(model, config, secrets),
        reach=secrets.reach,
    )
    sampler = servers_named(config.kind).sampler(served)
    return Policy(decoder, chat, samplers=sampler)


def _key(model: ModelRecord, config: ServersConfig, secrets: Secrets) -> str | None:
    if config.key_env is None:
        return None
    key = secrets.get(config.key_env)
    if not key:
        where = (
            "Set it where this platform runs."
            if model.team_id == LOCAL_TEAM
            else f"Keep it for your team: hud secrets set {config.key_env}"
        )
        raise UsageError(
            f"The servers of {model.slug!r} need the key in {config.key_env}, which is not set. {where}"
        )
    return key
