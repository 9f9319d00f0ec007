"""A small decoder with random weights and a long context."""

from dataclasses import replace

import torch

from hud.engine.config import DecoderConfig
from hud.engine.models.reference_decoder import ReferenceDecoder

CONFIG = DecoderConfig(
    model_type="qwen3",
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=4096,
)


def random_decoder(seed: int = 0, *, spread: float = 0.0, **options: object) -> ReferenceDecoder:
    """Return a decoder of `CONFIG`, with `options` of it changed; scales and biases are up to `spread` from 1 and 0."""
    torch.manual_seed(seed)
    decoder = ReferenceDecoder(replace(CONFIG, **options))
    for parameter in decoder.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0, 0.25)  # Distributions that are far from even.
    for parameter in decoder.parameters():
        if parameter.dim() == 1:
            parameter.data.add_(spread * torch.randn_like(parameter))
    return decoder.eval()


def forward_logprobs(decoder: ReferenceDecoder, prompt: list[int], drawn: list[int]) -> list[float]:
    """Return the logprobs of `drawn` after `prompt`, computed in one packed pass."""
    ids = torch.tensor([*prompt, *drawn])
    with torch.no_grad():
        hidden = decoder.hidden_packed(
            ids[:-1], torch.arange(len(ids) - 1), torch.tensor([0, len(ids) - 1])
        )
        logprobs = torch.log_softmax(decoder.logits(hidden[len(prompt) - 1 :]), dim=-1)
    return logprobs.gather(-1, ids[len(prompt) :, None]).squeeze(-1).tolist()
