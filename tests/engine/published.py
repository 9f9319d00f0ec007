"""Published chat templates as model folders: each with a small tokenizer that has its model's special tokens.

The tokenizers are byte-level BPE of a few hundred tokens. The special tokens are those that a conversation can meet;
`special` is the flag of `tokenizer.json` (Qwen's `<think>` and `<tool_call>` are added tokens without it).
"""

import functools
import json
from dataclasses import dataclass
from pathlib import Path

from tests.lasting_folders import lasting_folder
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from hud.engine.chat.chat_format import ChatFormat
from hud.engine.config import DecoderConfig

TEMPLATES = Path(__file__).parent / "templates"
_CHATML = (
    "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|vision_start|> <|image_pad|>"
)
_QWEN = "<tool_call> </tool_call> <|fim_prefix|> <|repo_name|>"
_QWEN3 = f"{_QWEN} <tool_response> </tool_response> <think> </think>"
_LLAMA = (
    "<|begin_of_text|> <|end_of_text|> <|start_header_id|> <|end_header_id|> <|eom_id|> <|eot_id|> "
    "<|python_tag|> <|reserved_special_token_0|>"
)
_MISTRAL = "<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] [/TOOL_RESULTS] [TOOL_CALLS]"
_MISTRAL3 = f"{_MISTRAL} [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CONTENT] [ARGS] [CALL_ID] [IMG]"
_DEEPSEEK = "<｜begin▁of▁sentence｜> <｜end▁of▁sentence｜> <｜▁pad▁｜>"
_DEEPSEEK_ADDED = (
    "<｜User｜> <｜Assistant｜> <think> </think> <｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> <｜tool▁call▁begin｜> "
    "<｜tool▁call▁end｜> <｜tool▁outputs▁begin｜> <｜tool▁outputs▁end｜> <｜tool▁output▁begin｜> <｜tool▁output▁end｜> "
    "<｜tool▁sep｜>"
)
_GLM = "<|endoftext|> [gMASK] <sop> <eop> <|system|> <|user|> <|assistant|> <|observation|>"
_GLM_ADDED = (
    "<think> </think> <tool_call> </tool_call> <tool_response> </tool_response> <arg_key> </arg_key> <arg_value> "
    "</arg_value> /nothink"
)
_HARMONY = "<|startoftext|> <|endoftext|> <|return|> <|constrain|> <|channel|> <|start|> <|end|> <|message|> <|call|>"
_GEMMA = "<pad> <eos> <bos> <unk> <start_of_turn> <end_of_turn> <start_of_image>"


@dataclass(frozen=True)
class Published:
    """One template and what its model's tokenizer adds to a vocabulary."""

    special: str
    added: str = ""
    end: str = "<|im_end|>"
    """`eos_token` in tokenizer_config.json."""
    begin: str | None = None
    stops: str = ""
    """Further end-of-turn tokens of generation_config.json."""


PUBLISHED = {
    "qwen2.5": Published(_CHATML, _QWEN),
    "qwen3": Published(_CHATML, _QWEN3),
    "qwen3-2507": Published(_CHATML, _QWEN3),
    "qwen3-coder": Published(_CHATML, _QWEN3),
    "qwen3.5": Published(_CHATML, _QWEN3),
    "qwen3.6": Published(_CHATML, _QWEN3),
    "hermes3": Published(
        f"<|begin_of_text|> {_CHATML}",
        "<tool_call> </tool_call> <tool_response> </tool_response>",
        begin="<|begin_of_text|>",
    ),
    "llama3.1": Published(_LLAMA, end="<|eot_id|>", begin="<|begin_of_text|>", stops="<|eom_id|>"),
    "llama3.2": Published(_LLAMA, end="<|eot_id|>", begin="<|begin_of_text|>", stops="<|eom_id|>"),
    "mistral-nemo": Published(_MISTRAL, end="</s>", begin="<s>"),
    "mistral-small-3.2": Published(_MISTRAL3, end="</s>", begin="<s>"),
    "ministral-3": Published(f"{_MISTRAL3} [THINK] [/THINK]", end="</s>", begin="<s>"),
    "deepseek-v3.1": Published(
        _DEEPSEEK, _DEEPSEEK_ADDED, end="<｜end▁of▁sentence｜>", begin="<｜begin▁of▁sentence｜>"
    ),
    "glm-4.6": Published(_GLM, _GLM_ADDED, end="<|endoftext|>", stops="<|user|> <|observation|>"),
    "gpt-oss": Published(_HARMONY, end="<|return|>", begin="<|startoftext|>", stops="<|call|>"),
    "smollm2": Published("<|endoftext|> <|im_start|> <|im_end|> <repo_name>"),
    # Gemma's vocabulary adds runs of newlines and HTML tags: text like any other.
    "gemma3": Published(
        _GEMMA, "\n\n \n\n\n <table> </table>", end="<eos>", begin="<bos>", stops="<end_of_turn>"
    ),
}
_TEXT = (
    "The assistant may call one or more functions to assist with the user query. You are provided with function "
    'signatures within tools tags: {"type": "function", "function": {"name": "look", "description": "", "parameters": '
    '{"type": "object", "properties": {"at": {"type": "integer"}}, "required": ["at"]}}}\n\nNo thinking.\n\n'
)


def specials(name: str) -> list[str]:
    """Return the tokens that only the template may write: all but those that are plain text."""
    model = PUBLISHED[name]
    added = [text for text in model.added.split(" ") if text.strip() and "table" not in text]
    return [*model.special.split(), *added]


@functools.cache
def published_folder(name: str) -> Path:
    """Return a folder with a template, its tokenizer and generation settings; there are no weights in it."""
    model = PUBLISHED[name]
    folder = lasting_folder(f"{name}-")
    tokenizer = _vocabulary()
    tokenizer.add_special_tokens(
        [AddedToken(text, normalized=False, special=True) for text in model.special.split()]
    )
    tokenizer.add_tokens(
        [AddedToken(text, normalized=False) for text in model.added.split(" ") if text]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": model.end,
        "bos_token": model.begin,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    stops = [tokenizer.token_to_id(text) for text in (model.end, *model.stops.split())]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": stops}))
    template = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder


@functools.cache
def published_format(name: str) -> ChatFormat:
    """Return a published model's chat format."""
    return ChatFormat(published_folder(name), no_weights())


def no_weights() -> DecoderConfig:
    return DecoderConfig(
        model_type="qwen3",
        vocab_size=1024,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        eos_token_ids=(),
    )


def _vocabulary() -> Tokenizer:
    """Return a byte-level BPE without special tokens. The same every time."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(
                Regex(r" ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+"), behavior="isolated"
            ),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_TEXT], trainer)
    return tokenizer
