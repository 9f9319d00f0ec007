"""Tiny GGUF files, written by the gguf package in llama.cpp's own layout."""

import json
from pathlib import Path

import gguf
import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from hud.engine.config import DecoderConfig
from hud.engine.models.reference_decoder import ReferenceDecoder

TEXTS = [
    f"look at item {n}: the answer is {n} apples, isn't it?\n  été {n * 37}" for n in range(200)
]
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
PIECES = ("\u2581", "l", "o", "k", "lo", "ok", "\u2581lo", "\u2581look", "a", "t", "at", "\u2581at")
"""Words of a small vocabulary of sentence pieces."""
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    **{f"self_attn.{letter}_proj": f"attn_{letter}" for letter in "qkv"},
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    **{f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")},
}
CUTS = {
    "smollm": pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "qwen2": pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(
                Regex(
                    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
                    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
                ),
                "isolated",
            ),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    ),
    "llama-bpe": pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(
                Regex(
                    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
                    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
                ),
                "isolated",
            ),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    ),
}


def tokenizer(pre="smollm") -> Tokenizer:
    """A byte-level tokenizer that splits texts in a way that GGUF has a name for."""
    made = Tokenizer(models.BPE(ignore_merges=pre == "llama-bpe"))
    made.pre_tokenizer = CUTS[pre]
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(TEXTS, trainer)
    return made


def decoder(family="llama", *, tied=True, vocabulary=400, seed=0, **shape) -> ReferenceDecoder:
    """A random decoder."""
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32 if family == "qwen3" else 16,
        "max_position_embeddings": 256,
        "rope_theta": 100_000.0,
        "rms_norm_eps": 1e-5,
        **shape,
    }
    config = DecoderConfig(
        model_type=family, vocab_size=vocabulary, tie_word_embeddings=tied, **sizes
    )
    made = ReferenceDecoder(config)
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(0.0, 0.3)
    return made.eval()


def write(path: Path, model: ReferenceDecoder, kind="F32", pre="smollm", **changes) -> Path:
    """Write a decoder and a tokenizer; `changes` are values of the metadata by name, with _ for the first dot; None: left out."""
    writer = gguf.GGUFWriter(path, model.config.model_type)
    for key, value in metadata(model.config, pre, changes).items():
        add(writer, key, value)
    kind = gguf.GGMLQuantizationType[kind]
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        values = packed_order(name, tensor, model.config).numpy()
        packs = values.ndim > 1 and kind.name != "F32"
        data = gguf.quantize(values, kind) if packs else values
        writer.add_tensor(gguf_name(name), data, raw_dtype=kind if packs else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def metadata(config: DecoderConfig, pre: str, changes: dict) -> dict:
    made = tokenizer(pre)
    ids = made.get_vocab()
    described = json.loads(made.to_str())["model"]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in described["merges"]]
    tokens = sorted(ids, key=ids.get)
    family = config.model_type
    values = {
        "general.type": "model",
        f"{family}.block_count": config.num_hidden_layers,
        f"{family}.context_length": config.max_position_embeddings,
        f"{family}.embedding_length": config.hidden_size,
        f"{family}.feed_forward_length": config.intermediate_size,
        f"{family}.attention.head_count": config.num_attention_heads,
        f"{family}.attention.head_count_kv": config.num_key_value_heads,
        f"{family}.attention.key_length": config.head_dim,
        f"{family}.attention.value_length": config.head_dim,
        f"{family}.attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        f"{family}.rope.freq_base": float(config.rope_theta),
        f"{family}.rope.dimension_count": config.head_dim,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in SPECIAL else 1 for token in tokens],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.chat_template": TEMPLATE,
        **changes,
    }
    return {key: value for key, value in values.items() if value is not None}


def add(writer: gguf.GGUFWriter, key: str, value) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def gguf_name(name: str) -> str:
    module, _, kind = name.rpartition(".")
    if module.startswith("model.layers."):
        _, _, layer, rest = module.split(".", 3)
        return f"blk.{layer}.{NAMES[rest]}.{kind}"
    return f"{NAMES[module]}.{kind}"


def packed_order(name: str, tensor: torch.Tensor, config: DecoderConfig) -> torch.Tensor:
    """llama.cpp's order of the rows of queries and keys (convert_hf_to_gguf.py, LlamaModel.permute)."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    count = heads.get(name.split(".")[-2])
    if config.model_type != "llama" or count is None:
        return tensor
    halves = tensor.reshape(count, 2, tensor.shape[0] // count // 2, *tensor.shape[1:])
    return halves.swapaxes(1, 2).reshape(tensor.shape).contiguous()


def rope_factors(path: Path, out: Path, factors: np.ndarray) -> Path:
    """Copy a file with `rope_freqs.weight`."""
    read = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(out, read.get_field("general.architecture").contents())
    for key, field in read.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            add(writer, key, field.contents())
    for tensor in read.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data))
    writer.add_tensor("rope_freqs.weight", factors.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out
