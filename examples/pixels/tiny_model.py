"""A tiny random Qwen3-VL in the published layout: vision tower, text model, tokenizer and picture processor, with no downloads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedTokenizerFast
from transformers.utils import logging

WIDTH = 48
POSITIONS = 2.0
"""Standard deviation of the tower's embeddings of places: with smaller ones it takes far longer to learn where something is."""
PATCH, MERGED = 8, 2
"""Side of a patch in pixels, and of a picture token in patches."""
SHOWN = 48
"""Side of the picture that the tower sees, in pixels: nine picture tokens."""
SPECIAL = {
    "pad_token": "<|endoftext|>",
    "eos_token": "<|im_end|>",
    "turn": "<|im_start|>",
    "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>",
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
}
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_model(folder: Path, texts: Sequence[str], *, seed: int = 0) -> int:
    """Write the folder of a new model whose tokenizer has a token for each of `texts`; return its number of parameters."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer([*texts, "user\n", "assistant\n", "\n"])
    names = {name: text for name, text in SPECIAL.items() if name in ("pad_token", "eos_token")}
    extra = {name: text for name, text in SPECIAL.items() if name[:5] in ("image", "video")}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names, extra_special_tokens=extra)
    fast.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    pixels = {
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "patch_size": PATCH,
        "merge_size": MERGED,
        "temporal_patch_size": 2,
        "size": {"shortest_edge": SHOWN**2, "longest_edge": SHOWN**2},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(pixels))
    settings = {"processor_class": "Qwen3VLProcessor"}
    (folder / "processor_config.json").write_text(json.dumps(settings))
    torch.manual_seed(seed)
    model = AutoModelForImageTextToText.from_config(_configuration(tokenizer))
    _randomize(model)
    model.generation_config.eos_token_id = tokenizer.token_to_id(SPECIAL["eos_token"])
    logging.disable_progress_bar()
    model.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def _tokenizer(texts: Sequence[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1024,
        min_frequency=1,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokens = [AddedToken(text, special=True, normalized=False) for text in SPECIAL.values()]
    tokenizer.add_special_tokens(tokens)
    return tokenizer


def _configuration(tokenizer: Tokenizer) -> AutoConfig:
    ids = {name: tokenizer.token_to_id(text) for name, text in SPECIAL.items()}
    return AutoConfig.for_model(
        "qwen3_vl",
        text_config={
            "vocab_size": tokenizer.get_vocab_size(),
            "hidden_size": WIDTH,
            "intermediate_size": 2 * WIDTH,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "max_position_embeddings": 512,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [4, 2, 2],
            },
        },
        vision_config={
            "depth": 1,
            "hidden_size": WIDTH,
            "intermediate_size": 2 * WIDTH,
            "num_heads": 4,
            "patch_size": PATCH,
            "spatial_merge_size": MERGED,
            "out_hidden_size": WIDTH,
            "num_position_embeddings": (SHOWN // PATCH) ** 2,
            "deepstack_visual_indexes": [0],
        },
        image_token_id=ids["image_token"],
        video_token_id=ids["video_token"],
        vision_start_token_id=ids["vision_bos_token"],
        vision_end_token_id=ids["vision_eos_token"],
        tie_word_embeddings=True,
    )


@torch.no_grad()
def _randomize(model: torch.nn.Module) -> None:
    """Draw weights that keep the size of what passes through. The class's own are for large models."""
    for name, weight in model.named_parameters():
        if "pos_embed" in name:
            weight.normal_(std=POSITIONS)
        elif weight.ndim > 1:
            inputs = WIDTH if "embed_tokens" in name else weight[0].numel()
            weight.normal_(std=inputs**-0.5)
