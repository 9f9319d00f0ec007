"""Small random models of families that people train, each in the layout in which it is published: class, weights, tokenizer, template."""

import json
import shutil

import torch
from safetensors.torch import load_file, save_file
from tests.engine.template_folders import template_folder

from hud.engine.exactness.small_model import randomized

TEXT = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
}
EXPERTS = {"moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2}
LINEAR = {
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "tie_word_embeddings": True,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25,
        "mrope_section": [1, 1, 0],
        "mrope_interleaved": True,
    },
}
QWEN_VISION = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "out_hidden_size": 64,
    "patch_size": 4,
    "num_position_embeddings": 16,
}
LLAMA4_VISION = {
    "hidden_size": 32,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 4,
    "projector_input_dim": 32,
    "projector_output_dim": 32,
    "vision_output_dim": 32,
}
FAMILIES = {
    "qwen3_5": ("qwen3.5", LINEAR, {"vision_config": QWEN_VISION, "tie_word_embeddings": True}),
    "qwen3_5_moe": (
        "qwen3.5",
        {**LINEAR, **EXPERTS, "shared_expert_intermediate_size": 32},
        {"vision_config": QWEN_VISION, "tie_word_embeddings": True},
    ),
    "qwen3_moe": ("qwen3", EXPERTS, None),
    "gpt_oss": (
        "gpt-oss",
        {
            "intermediate_size": 64,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 8,
        },
        None,
    ),
    "gemma3_text": (
        "gemma3",
        {
            "num_hidden_layers": 6,
            "sliding_window": 8,
            "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
        },
        None,
    ),
    "glm4_moe": (
        "glm-4.6",
        {
            "num_hidden_layers": 3,
            "moe_intermediate_size": 32,
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "first_k_dense_replace": 1,
            "n_group": 1,
            "topk_group": 1,
        },
        None,
    ),
    "llama4": (
        "llama4-pythonic",
        {
            "num_hidden_layers": 4,
            "intermediate_size": 48,
            "intermediate_size_mlp": 96,
            "num_local_experts": 4,
            "num_experts_per_tok": 1,
            "interleave_moe_layer_step": 2,
            "attention_chunk_size": 16,
            "no_rope_layers": [1, 1, 1, 0],
        },
        {"vision_config": LLAMA4_VISION},
    ),
}
"""Template, sizes of the text model, and of the whole where the text model is a part of it, by model type."""


def published(kind, folder):
    """Write a folder of a family, and return it."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    template, text, whole = FAMILIES[kind]
    source = template_folder(template)
    described = json.loads((source / "config.json").read_text())
    (end, *_) = described["eos_token_id"]
    text = {
        **TEXT,
        **text,
        "vocab_size": described["vocab_size"],
        "eos_token_id": end,
        "pad_token_id": 0,
    }
    torch.manual_seed(0)
    if whole is None:
        config = AutoConfig.for_model(kind, **text)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    else:
        config = AutoConfig.for_model(kind, text_config=text, **whole)
        model = AutoModelForImageTextToText.from_config(config, attn_implementation="eager")
    randomized(model.float().eval()).save_pretrained(folder)
    if kind == "gpt_oss":
        _quantize(folder)
    if kind == "qwen3_5":
        weights = load_file(folder / "model.safetensors")
        weights["mtp.fc.weight"] = torch.randn(64, 128)
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(source / name, folder / name)
    return folder


def _quantize(folder):
    """Put random MXFP4 weights of the experts into a folder of gpt-oss, as it is published; others stay in float32."""
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            weights[name] = tensor
            continue
        experts, inner, out = tensor.shape
        blocks = (experts, out, inner // 32, 16)
        weights[f"{name}_blocks"] = torch.randint(256, blocks, generator=generator).byte()
        weights[f"{name}_scales"] = torch.randint(121, 124, blocks[:3], generator=generator).byte()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    path = folder / "config.json"
    kept = [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ]
    quantization = {"quant_method": "mxfp4", "modules_to_not_convert": kept}
    described = json.loads(path.read_text())
    path.write_text(json.dumps({**described, "quantization_config": quantization}))
