"""A tiny Qwen3.5 as it is published: its real class with vision tower and MTP head, tokenizer and chat template."""

import json
import shutil

import torch
from safetensors.torch import load_file, save_file
from tests.engine.template_folders import template_folder

TEMPLATE = "qwen3.5"


def published_qwen35(folder):
    """Write the folder, and return it."""
    from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

    source = template_folder(TEMPLATE)
    described = json.loads((source / "config.json").read_text())
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
    text = {
        "vocab_size": described["vocab_size"],
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
        "eos_token_id": described["eos_token_id"][0],
        "rope_parameters": {**rope, "mrope_section": [1, 1, 0], "mrope_interleaved": True},
    }
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_heads": 2,
        "out_hidden_size": 64,
        "patch_size": 4,
        "num_position_embeddings": 16,
    }
    torch.manual_seed(0)
    config = Qwen3_5Config(text_config=text, vision_config=vision, tie_word_embeddings=True)
    model = Qwen3_5ForConditionalGeneration(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    weights["mtp.fc.weight"] = torch.randn(64, 128)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(source / name, folder / name)
    return folder
