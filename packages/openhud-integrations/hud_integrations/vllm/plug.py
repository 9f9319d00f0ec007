"""The entry point `vllm` of `hud.samplers`: a model's vLLM servers (`hud models vllm`)."""

from __future__ import annotations

from hud.engine.backends.sampling_servers import SamplingServers, ServedPolicy, ServerSampler
from hud_integrations.vllm.publication import Publisher
from hud_integrations.vllm.sampler import VllmSampler
from hud_integrations.vllm.server_settings import Servers
from hud_integrations.vllm.weight_transfer import nccl_engine


class VllmServers(SamplingServers):
    """vLLM servers, over HTTP."""

    def sampler(self, policy: ServedPolicy) -> ServerSampler:
        publisher = Publisher(
            policy.decoder,
            policy.lora,
            root=policy.published,
            name=policy.name,
            find=policy.saved,
            connect=nccl_engine if policy.transfer == "nccl" else None,
        )
        port = policy.receiver_port if policy.transfer == "receiver" else None
        servers = Servers(policy.urls, policy.key, receiver_port=port, reach=policy.reach)
        shape = policy.decoder.config
        return VllmSampler(servers, publisher, shape.vocab_size, shape.max_position_embeddings)


servers = VllmServers()
