"""Small random models with pictures: folders of the real classes in the published layout, with their processors' settings."""

import base64
import io
import json
import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedTokenizerFast

from hud.engine.exactness.small_model import randomized

TEMPLATES = Path(__file__).parent / "templates"
TEXT = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 2048,
}
QWEN_SPECIAL = {
    "pad_token": "<|endoftext|>",
    "start": "<|im_start|>",
    "eos_token": "<|im_end|>",
    "vision_start": "<|vision_start|>",
    "vision_end": "<|vision_end|>",
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
}
QWEN_PIXELS = {
    "image_processor_type": "Qwen2VLImageProcessorFast",
    "patch_size": 4,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "size": {"shortest_edge": 16 * 16, "longest_edge": 40 * 40},
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
SIGLIP_VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "patch_size": 4,
    "image_size": 16,
}
QWEN_VISION = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "patch_size": 4,
    "out_hidden_size": 32,
    "num_position_embeddings": 36,
}
ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
LINEAR = {
    "rope_parameters": {**ROPE, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 0]},
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
EXPERTS = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
QWEN_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
IDEFICS_TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}"
    "{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)


def _qwen(kind, text, vision):
    def configuration(ids):
        return AutoConfig.for_model(
            kind,
            text_config={**TEXT, "vocab_size": ids["size"], **text},
            vision_config={**QWEN_VISION, **vision},
            image_token_id=ids["<|image_pad|>"],
            video_token_id=ids["<|video_pad|>"],
            vision_start_token_id=ids["<|vision_start|>"],
            vision_end_token_id=ids["<|vision_end|>"],
            tie_word_embeddings=True,
        )

    return configuration


def _idefics(ids):
    return AutoConfig.for_model(
        "idefics3",
        text_config={"model_type": "llama", **TEXT, "vocab_size": ids["size"]},
        vision_config=SIGLIP_VISION,
        scale_factor=2,
        image_token_id=ids["<image>"],
        pad_token_id=0,
    )


def _gemma(ids):
    return AutoConfig.for_model(
        "gemma3",
        text_config={
            **TEXT,
            "vocab_size": ids["size"],
            "num_hidden_layers": 6,
            "sliding_window": 8,
        },
        vision_config=SIGLIP_VISION,
        mm_tokens_per_image=4,
        image_token_id=ids["<image_soft_token>"],
        boi_token_id=ids["<start_of_image>"],
        eoi_token_id=ids["<end_of_image>"],
    )


FAMILIES = {
    "qwen3_vl": (
        _qwen("qwen3_vl", {"rope_parameters": ROPE}, {"deepstack_visual_indexes": [0, 1]}),
        QWEN_SPECIAL,
        QWEN_PIXELS,
        {"processor_class": "Qwen3VLProcessor"},
        QWEN_TEMPLATE,
    ),
    "qwen3_5": (
        _qwen(
            "qwen3_5",
            LINEAR,
            {},
        ),
        QWEN_SPECIAL,
        QWEN_PIXELS,
        {"processor_class": "Qwen3VLProcessor"},
        "qwen3.5.jinja",
    ),
    "qwen3_5_moe": (
        _qwen("qwen3_5_moe", {**LINEAR, **EXPERTS, "tie_word_embeddings": True}, {}),
        QWEN_SPECIAL,
        QWEN_PIXELS,
        {"processor_class": "Qwen3VLProcessor"},
        "qwen3.5.jinja",
    ),
    "idefics3": (
        _idefics,
        {
            "pad_token": "<|endoftext|>",
            "start": "<|im_start|>",
            "eos_token": "<end_of_utterance>",
            "fake": "<fake_token_around_image>",
            "image_token": "<image>",
            "global": "<global-img>",
            **{f"row{n}": f"<row_{n // 6 + 1}_col_{n % 6 + 1}>" for n in range(36)},
        },
        {
            "image_processor_type": "Idefics3ImageProcessor",
            "size": {"longest_edge": 32},
            "max_image_size": {"longest_edge": 16},
            "do_image_splitting": True,
        },
        {"processor_class": "Idefics3Processor", "image_seq_len": 4},
        IDEFICS_TEMPLATE,
    ),
    "gemma3": (
        _gemma,
        {
            "pad_token": "<pad>",
            "eos_token": "<eos>",
            "bos_token": "<bos>",
            "turn": "<start_of_turn>",
            "turn_end": "<end_of_turn>",
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
            "image_token": "<image_soft_token>",
        },
        {
            "image_processor_type": "Gemma3ImageProcessor",
            "size": {"height": 16, "width": 16},
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            "do_convert_rgb": None,
            "do_pan_and_scan": None,
        },
        {"processor_class": "Gemma3Processor", "image_seq_length": 4},
        "gemma3.jinja",
    ),
}


def write_folder(folder, kind, *, seed=0):
    """Write a small random model of a family, as published ones are; return the model."""
    folder.mkdir(parents=True, exist_ok=True)
    configuration, special, pixels, settings, template = FAMILIES[kind]
    tokenizer = _tokenizer(special)
    named = {name: text for name, text in special.items() if name.endswith("_token")}
    extra = {
        name: named.pop(name)
        for name in list(named)
        if name in ("image_token", "boi_token", "eoi_token", "video_token")
    }
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **named, extra_special_tokens=extra
    ).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(pixels))
    (folder / "processor_config.json").write_text(json.dumps(settings))
    text = (TEMPLATES / template).read_text() if template.endswith(".jinja") else template
    (folder / "chat_template.jinja").write_text(text)
    ids = {text: tokenizer.token_to_id(text) for text in special.values()}
    config = configuration({**ids, "size": tokenizer.get_vocab_size()})
    torch.manual_seed(seed)
    model = AutoModelForImageTextToText.from_config(config, attn_implementation="eager")
    model = randomized(model.float().eval())
    model.generation_config.eos_token_id = ids[special["eos_token"]]
    model.save_pretrained(folder)
    return model


def _tokenizer(special):
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(
        models.BPE(vocab={text: place for place, text in enumerate(letters)}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in special.values()]
    )
    return tokenizer


def png(seed, width=None, height=None):
    """Return a random picture's file."""
    random_ = random.Random(seed)
    size = (height or random_.randint(9, 60), width or random_.randint(9, 60), 3)
    pixels = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def data_url(file):
    """Return a file as the URL of a message's part."""
    return f"data:image/png;base64,{base64.b64encode(file).decode()}"


def shown(file):
    """Return a picture as a part of a message."""
    return {"type": "image_url", "image_url": {"url": data_url(file)}}
