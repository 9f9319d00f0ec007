"""Detection of context overflow: sentences by which servers refuse a conversation that is too long.

Few servers send a code for it, so that their sentences are matched. To add a server, add its sentence with its source, and
to the tests.
"""

from __future__ import annotations

import re

_SENTENCES = (
    # OpenAI, Azure, DeepSeek, OpenRouter, LiteLLM, vLLM, SGLang: the code, or "maximum context length is N tokens".
    # platform.openai.com/docs/guides/error-codes, vllm-project/vllm issues 20409 and 36197
    r"context[_ ]length",
    r"maximum context",
    # OpenAI's Responses API: "Your input exceeds the context window of this model". MiniMax: "context window exceeds limit".
    # llama-cpp-python: "Requested tokens (2285) exceed context window of 2048" (llama_cpp/llama.py)
    r"context[_ ]window",
    # "input length and `max_tokens` exceed context limit": docs.anthropic.com/en/api/errors
    r"context limit",
    r"context holds",  # this engine
    # llama.cpp: "exceeds the available context size", "Context size has been exceeded.", ggml-org/llama.cpp 15780, 19774.
    # Mistral: "Prompt has N tokens, but the configured context size is M tokens"
    r"context size (has been|was) exceeded",
    r"exceeds? the (available|configured|maximum) context",
    r"configured context size",
    r"exceed_context_size",
    # vLLM: "The decoder prompt (length 5000) is longer than the maximum model length of 4096", vllm/v1/engine;
    # older: "max_tokens must be at least 1, got -186", vllm-project/vllm issues 4667 and 12165
    r"maximum model length",
    r"max_model_len",
    r"max_tokens must be at least 1, got -",
    # Anthropic, Vertex, Fireworks ("The prompt is too long: 40177, model maximum ...", fw-ai/cookbook issue 134);
    # Ollama: "prompt too long; exceeded max context length by 263 tokens"; RKLLM, Databricks
    r"prompt (is )?too long",
    r"prompt \(.{0,40}\) is too long",
    r"input prompt \(\d+ tokens\) is too long",  # vLLM before 0.6
    # SGLang: "Input length (5000 tokens) exceeds the maximum allowed length (4096 tokens)",
    # sgl-project/sglang, srt/managers/scheduler.py; Poolside: "maximum allowed input length of N tokens"
    r"input length.{0,40}exceeds? the (maximum|model)",
    r"exceeds? the maximum (allowed )?(input|prompt) length",
    r"input is too long",  # Bedrock: "Input is too long for requested model."
    r"input (token length|length) too long",  # Kimi
    # Gemini: "The input token count (N) exceeds the maximum number of tokens allowed (M).", Vertex: "the input token count is
    # N but model only supports up to M", Copilot: "prompt token count of N exceeds the limit of M"
    r"token count.{0,40}(exceeds|but model only supports)",
    r"exceeds?.{0,40}(number of (input )?tokens|token limit)",
    r"tokens in request more than max tokens allowed",
    r"maximum prompt length",  # Grok: "This model's maximum prompt length is 131072 but the request contains ..."
    r"exceeded model token limit",  # Kimi: "Your request exceeded model token limit: 262144 (requested: 291351)"
    r"prompt exceeds max(imum)? length",  # GLM, code 1261
    r"range of input length should be",  # Qwen: www.alibabacloud.com/help/en/model-studio/error-code
    r"reduce the length of the (input )?(messages|prompt)",  # Groq, Cerebras: console.groq.com/docs/errors
    # TGI, Together: huggingface/text-generation-inference, router/src/validation.rs
    r"`?inputs`? tokens \+ `?max_new_tokens`? must be",
    r"`?inputs`? must have less than \d+ tokens",
    # Cohere: "too many tokens: total number of tokens in the prompt cannot exceed 4081", docs.cohere.com/reference/errors
    r"too many (input )?tokens",
    r"input tokens exceed the configured limit",  # OpenAI
    r"request_too_large",  # Anthropic: more than 32 MB, of which images are most
)
_OVERFLOW = re.compile("|".join(f"(?:{sentence})" for sentence in _SENTENCES), re.IGNORECASE)
_OTHER_LIMIT = re.compile(
    r"rate[_ ]limit|tokens per (minute|hour|day)|per-(minute|day)|too many requests|throttl|please wait"
    r"|max tokens must be less",
    re.IGNORECASE,
)
"""Limits of tokens in a time, and of an answer."""


def is_overflow(code: str | None, message: str) -> bool:
    """Return True if an error says that the conversation exceeds the model's context."""
    text = f"{code} {message}"
    return bool(_OVERFLOW.search(text)) and not _OTHER_LIMIT.search(text)
