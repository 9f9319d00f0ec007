"""The entry point `vllm` of `hud.samplers`: a model's vLLM servers (`hud models vllm`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from hud.engine.backends.sampling_servers import (
    SamplingServers,
    ServedPolicy,
    ServerSampler,
    TrainedModel,
)
from hud.errors import UsageError
from hud_integrations.vllm.publication import Publisher
from hud_integrations.vllm.sampler import VllmSampler
from hud_integrations.vllm.server_settings import Servers
from hud_integrations.vllm.weight_transfer import nccl_engine


class VllmSettings(BaseModel, extra="forbid"):
    """Settings of a model's vLLM servers."""

    weights: Literal["folder", "receiver", "nccl"] = "folder"
    """Transfer of weights: loaded from a shared folder, from one that the servers' host received, or sent from GPU to GPU."""
    receiver_port: int = Field(default=8400, ge=1, le=65535)
    """Port of the receivers of weights on the servers' hosts."""


class VllmServers(SamplingServers):
    """vLLM servers, over HTTP."""

    def check(self, settings: Mapping[str, Any], model: TrainedModel) -> dict[str, Any]:
        """Raises `UsageError` for other settings, router replay, and weights over NCCL of an adapter."""
        try:
            checked = VllmSettings.model_validate(settings)
        except ValidationError as error:
            problem = error.errors()[0]
            name = ".".join(map(str, problem["loc"]))
            raise UsageError(f"Settings of vLLM servers: {name}: {problem['msg']}.") from None
        if model.router_replay:
            raise UsageError(
                f"{model.slug!r} is trained with --router-replay, which vLLM servers do not support: fork it without."
            )
        if checked.weights == "nccl" and model.adapter:
            raise UsageError(
                f"{model.slug!r} is trained by an adapter, which reaches vLLM servers as a file; leave --weights out."
            )
        return checked.model_dump()

    def sampler(self, policy: ServedPolicy) -> ServerSampler:
        settings = VllmSettings.model_validate(policy.settings)
        publisher = Publisher(
            policy.decoder,
            policy.lora,
            root=policy.published,
            name=policy.name,
            find=policy.saved,
            connect=nccl_engine if settings.weights == "nccl" else None,
        )
        port = settings.receiver_port if settings.weights == "receiver" else None
        servers = Servers(policy.urls, policy.key, receiver_port=port, reach=policy.reach)
        shape = policy.decoder.config
        return VllmSampler(servers, publisher, shape.vocab_size, shape.max_position_embeddings)


servers = VllmServers()
