"""A policy of tests that stand-ins of vLLM servers sample."""

from tests.engine.tiny_policy import tiny_folder

from hud.engine.chat.chat_format import ChatFormat
from hud.engine.lora import attach, lora_parameters
from hud.engine.policy import Policy
from hud.engine.pretrained import load_decoder
from hud_integrations.vllm.publication import Publisher
from hud_integrations.vllm.sampler import VllmSampler
from hud_integrations.vllm.server_settings import Patience, Servers

BASE = None


def vllm_policy(
    servers, root, *, lora=None, connect=None, key=None, folder=None, receiver_port=None, **patience
):
    """Return a policy whose turns end at their length."""
    folder = folder or tiny_folder()
    decoder = load_decoder(folder)
    if lora is not None:
        attach(decoder, lora)
    chat = ChatFormat(folder, decoder.config)
    chat.stop_ids = frozenset()

    def find(version):
        return folder if version is None and lora is None else None

    publisher = Publisher(
        decoder, lora, root=root / "published", name="hud-test", find=find, connect=connect
    )
    asked = Servers(
        tuple(server if isinstance(server, str) else server.url for server in servers),
        key,
        Patience(**{"look": 0.1, "health": 1.0, "server": 20.0, **patience}),
        receiver_port,
    )
    config = decoder.config
    sampler = VllmSampler(asked, publisher, config.vocab_size, config.max_position_embeddings)
    policy = Policy(decoder, chat, samplers=sampler)
    policy.checkpoint = None
    return policy


def change(policy, name, *, in_flight=False, factor=0.3):
    """Take a step's place: other weights, under a name."""
    with policy.exclusive(in_flight=in_flight):
        changed = lora_parameters(policy.decoder).values() or policy.decoder.parameters()
        for parameter in changed:
            parameter.data += factor * parameter.data.new_ones(parameter.shape).cumsum(-1).sin()
        policy.checkpoint = name
