"""Model folders with the chat templates of published models, and a small tokenizer that knows their special tokens."""

import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path

from tests.lasting_folders import lasting_folder
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from hud.engine.chat.chat_format import ChatFormat
from hud.engine.config import DecoderConfig
from hud.engine.tiny_model import create_tiny

TEMPLATES = Path(__file__).parent / "templates"
_SPECIAL = re.compile(
    r"<\|[^|<>\s]+\|>|<｜[^｜<>\s]+｜>|\[/?[A-Z_]{3,}\]|</?(?:tool_call|think|arg_key|arg_value)>"
)


@dataclass(frozen=True)
class Published:
    """A template, and what its model's tokenizer and settings say."""

    template: str
    format: str
    """The tool-call format that it writes, by vLLM's name."""
    end: str
    """The end-of-turn token."""
    ends: tuple[str, ...] = ()
    """Further tokens that end a turn."""


PUBLISHED = {
    one.template: one
    for one in (
        Published("qwen2.5", "hermes", "<|im_end|>"),
        Published("qwen3", "hermes", "<|im_end|>"),
        Published("qwen3-2507", "hermes", "<|im_end|>"),
        Published("qwen3-coder", "qwen3_coder", "<|im_end|>"),
        Published("qwen3.5", "qwen3_coder", "<|im_end|>"),
        Published("qwen3.6", "qwen3_coder", "<|im_end|>"),
        Published("hermes3", "hermes", "<|im_end|>"),
        Published("llama3.1", "llama3_json", "<|eot_id|>", ("<|eom_id|>",)),
        Published("llama3.2", "llama3_json", "<|eot_id|>"),
        Published("llama3.2-pythonic", "pythonic", "<|eot_id|>"),
        Published("llama4-pythonic", "llama4_pythonic", "<|eot|>"),
        Published("mistral-nemo", "mistral", "</s>"),
        Published("mistral-small-3.2", "mistral", "</s>"),
        Published("ministral-3", "mistral", "</s>"),
        Published("deepseek-v3", "deepseek_v3", "<｜end▁of▁sentence｜>"),
        Published("deepseek-v3.1", "deepseek_v31", "<｜end▁of▁sentence｜>"),
        Published("glm-4.6", "glm45", "<|endoftext|>", ("<|user|>", "<|observation|>")),
        Published("glm-4.7", "glm45", "<|endoftext|>", ("<|user|>", "<|observation|>")),
        Published("gpt-oss", "openai", "<|return|>", ("<|call|>",)),
        Published("gemma3", "hermes", "<end_of_turn>"),
    )
}


def template_text(name: str) -> str:
    return (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")


@functools.cache
def template_folder(name: str) -> Path:
    """Return a folder with the template and a byte-level tokenizer of 256 bytes and the template's special tokens."""
    one, text = PUBLISHED[name], template_text(name)
    tokenizer = Tokenizer(
        models.BPE(
            vocab={byte: at for at, byte in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))},
            merges=[],
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = dict.fromkeys([one.end, *one.ends, *_SPECIAL.findall(text)])
    if one.format != "mistral":
        special = {token: None for token in special if not token.startswith("[")}
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    folder = lasting_folder(f"template-{name}-")
    create_tiny(folder, ["a"], vocab_size=300, hidden=16, layers=1, heads=2, kv_heads=1)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": one.end, "bos_token": None})
    )
    (folder / "chat_template.jinja").write_text(text, encoding="utf-8")
    config = json.loads((folder / "config.json").read_text())
    ends = [tokenizer.token_to_id(token) for token in (one.end, *one.ends)]
    (folder / "config.json").write_text(
        json.dumps({**config, "vocab_size": tokenizer.get_vocab_size(), "eos_token_id": ends})
    )
    return folder


@functools.cache
def template_chat(name: str) -> ChatFormat:
    folder = template_folder(name)
    return ChatFormat(folder, DecoderConfig.from_folder(folder))
