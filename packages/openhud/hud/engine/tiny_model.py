"""A small random model from nothing but text: tokenizer, chat template and weights, with no downloads."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from hud.engine.chat.tokenizers.published_patterns import NAME_PARTS, WORDS
from hud.engine.config import DecoderConfig
from hud.engine.models.reference_decoder import ReferenceDecoder
from hud.engine.pretrained import save_decoder
from hud.errors import UsageError

SPECIAL = (
    "<|end|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|tool|>",
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
)

MOST_PARAMETERS = 1 << 28
MOST_CHARACTERS = 1 << 24
"""Characters of the texts from which a tokenizer is made."""
_MOST = {
    "vocab_size": 1 << 17,
    "hidden": 1 << 12,
    "layers": 128,
    "heads": 1 << 10,
    "kv_heads": 1 << 10,
    "max_context": 1 << 20,
}

# Short, because a tiny model pays for every token; and it keeps its own prefix.
TEMPLATE = """\
{%- if tools or (messages and messages[0].role == 'system') -%}
<|system|>
{%- if messages and messages[0].role == 'system' %}{{ messages[0].content }}{% endif -%}
{%- for tool in tools or [] %}

{{ tool.function.name }}({{ tool.function.parameters.properties | join(', ') }})
{%- endfor -%}
<|end|>
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}
<|user|>{{ message.content }}<|end|>
{%- elif message.role == 'tool' -%}
<|tool|>{{ message.content }}<|end|>
{%- elif message.role == 'assistant' -%}
<|assistant|>{{ message.content }}
{%- for call in message.tool_calls or [] -%}
<tool_call>{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson }}}</tool_call>
{%- endfor -%}
<|end|>
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}<|assistant|>{% endif -%}
"""


def create_tiny(
    folder: Path,
    texts: Iterable[str],
    *,
    vocab_size: int = 1024,
    hidden: int = 128,
    layers: int = 4,
    heads: int = 4,
    kv_heads: int = 2,
    max_context: int = 1024,
    seed: int = 0,
) -> None:
    """Write a Qwen3-shaped model folder with random weights and a byte-level BPE tokenizer of `texts`.

    `transformers` loads the folder too. The same arguments give the same files.
    Raises `UsageError` for no texts and for sizes that do not divide.
    """
    texts = list(texts)
    if not texts:
        raise UsageError("There is no text to make a tokenizer from: the tasks have no prompts.")
    _refuse_large(
        texts,
        vocab_size=vocab_size,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        max_context=max_context,
    )
    if hidden % heads or heads % kv_heads or (hidden // heads) % 2:
        raise UsageError(
            f"heads={heads} must divide hidden={hidden} into even parts, and kv_heads={kv_heads} divide heads."
        )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer(texts, vocab_size)
    # Not `tokenizer.save`, whose failure on a full disk is no `OSError`.
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    end = 0  # Special tokens come first, in order.
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SPECIAL[0],
        "pad_token": SPECIAL[0],
        "model_max_length": max_context,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(
        json.dumps(settings, indent=2) + "\n", encoding="utf-8"
    )
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    config = DecoderConfig(
        model_type="qwen3",
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=hidden,
        intermediate_size=hidden * 3,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=hidden // heads,
        max_position_embeddings=max_context,
        tie_word_embeddings=True,
        eos_token_ids=(end,),
    )
    save_decoder(_random(config, seed), folder)


def _refuse_large(texts: list[str], **sizes: int) -> None:
    """Raise `UsageError` for sizes that are none, and for those that need more memory than a tiny model's."""
    for name, size in sizes.items():
        if not 1 <= size <= _MOST[name]:
            raise UsageError(f"{name}={size} must be from 1 to {_MOST[name]:,}.")
    hidden = sizes["hidden"]
    # 4 matrices of attention and 3 of an MLP of 3 times the width.
    parameters = sizes["vocab_size"] * hidden + sizes["layers"] * 13 * hidden**2
    if parameters > MOST_PARAMETERS:
        raise UsageError(
            f"These sizes make {parameters:,} parameters; a model made here has {MOST_PARAMETERS:,} at most. Add a larger "
            "one: hud models add FOLDER --name NAME"
        )
    characters = sum(map(len, texts))
    if characters > MOST_CHARACTERS:
        raise UsageError(
            f"The texts have {characters:,} characters; {MOST_CHARACTERS:,} are the most for a tokenizer made here."
        )


def _tokenizer(texts: list[str], vocab_size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    # Cut at whitespace only, so that the fixed phrases of tool calls become few tokens: a tiny model pays for each.
    # Digits and the parts of hyphenated names stand alone, so that a number or name never seen is made of pieces
    # that were, and reads the same wherever it stands.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(NAME_PARTS), behavior="isolated"),
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _random(config: DecoderConfig, seed: int) -> ReferenceDecoder:
    """Return a decoder with normal weights, those that write to the residual stream scaled down by depth."""
    decoder = ReferenceDecoder(config)
    generator = torch.Generator().manual_seed(seed)
    depth_scale = (2 * config.num_hidden_layers) ** -0.5
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            if parameter.ndim < 2:
                continue
            # Of embeddings too: at the usual 0.02 a policy this small takes twice as long to learn to copy.
            scale = parameter.shape[1] ** -0.5
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                scale *= depth_scale
            parameter.normal_(0.0, scale, generator=generator)
    return decoder
