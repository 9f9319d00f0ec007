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
    # TensorRT-LLM: "prompt length (5000) should not exceed max_num_tokens", "The sum of prompt length (5000), max_tokens (100)
    # should not exceed max_seq_len (4096)", "default_max_tokens (-904) = max_seq_len (4096) - prompt_len (5000)"
    # (tensorrt_llm/executor, serve). SiliconFlow: "length of prompt_tokens (N) must be less than max_seq_len (M)".
    # TabbyAPI: "Prompt length 5000 is greater than max_seq_len 4096"
    r"max_seq_len",
    r"prompt length.{0,80}should not exceed",
    r"max_tokens must be at least 1, got -",
    # Anthropic, Vertex, Fireworks ("The prompt is too long: 40177, model maximum ...", fw-ai/cookbook issue 134);
    # Ollama: "prompt too long; exceeded max context length by 263 tokens"; RKLLM, Databricks
    r"(prompt|input|conversation)[_ ]((is|tokens|message|message is)[_ ])?too[_ ](long|large)",
    r"prompt is longer than the model",
    r"prompt exceeds the (model|context)",
    r"prompt \(.{0,40}\) is too long",
    r"input prompt \(\d+ tokens\) is too long",  # vLLM before 0.6
    # SGLang: "Input length (5000 tokens) exceeds the maximum allowed length (4096 tokens)",
    # sgl-project/sglang, srt/managers/scheduler.py; Poolside: "maximum allowed input length of N tokens"
    r"input length.{0,40}exceeds? the (maximum|model)",
    r"exceeds? (the )?max(imum)? (allowed )?(input|prompt|sequence) length",
    r"input ids are too long",  # SGLang before 0.3
    r"input length \d+ exceeds session length",  # LMDeploy
    r"larger than the model input length limit",  # MLC: "Request prompt has 5000 tokens in total, larger than the ..."
    r"context (is )?full|context overflow",
    r"maximum sequence length exceeded",
    r"number of tokens (\(.{0,40}\) )?exceeds? the model",
    r"tokens in (the )?prompt exceeds?",
    r"(request|message) (is )?too long.{0,20}\d+ tokens|too long for (this )?model: \d+ tokens",
    r"maximum supported sequence length",  # SambaNova
    r"longer than the specified maximum sequence length",  # transformers
    r"prompt (tokens )?exceeds? (max(imum)? )?context",  # KoboldCpp
    r"input is too long",  # Bedrock: "Input is too long for requested model."
    r"input (token length|length) too long",  # Kimi
    # Gemini: "The input token count (N) exceeds the maximum number of tokens allowed (M).", Vertex: "the input token count is
    # N but model only supports up to M", Copilot: "prompt token count of N exceeds the limit of M"
    r"token count.{0,40}(exceeds|cannot exceed|but model only supports)",
    # watsonx.ai: "the number of input tokens N cannot exceed the total tokens limit M for this model"
    r"number of input tokens.{0,20}cannot exceed",
    r"exceeds?.{0,40}(number of (input )?tokens|token limit)",
    # Bedrock, Titan and Llama: "Malformed input request: expected maxLength: 50000, actual: 60000, please reformat your input"
    r"expected maxLength: \d+, actual: \d+, please reformat your input",
    r"exceeds? max message tokens",  # Volcengine: "Total tokens of image and text exceed max message tokens"
    r"input tokens exceeds?",
    r"number of tokens \(?\d+\)? exceeds?",
    r"max tokens of \d+ exceeded",  # Snowflake Cortex
    r"max_prompt_tokens_exceeded",  # Copilot
    r"(exceeds?|more than|larger than) n_ctx",  # llama.cpp
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
    r"ContextWindowExceeded",  # LiteLLM: docs.litellm.ai/docs/exception_mapping
    r"request body too large for .{1,60} model",  # GitHub Models: "Max size: 8000 tokens."
    r"request exceeds the maximum (allowed )?size",  # Anthropic, status 413
    # OpenAI: more than 10 MB of one text
    r"'(input|instructions|(messages|input)\[\d+\]\.(content|output)[^']*)': string too long",
    # llama.cpp: "input is too large to process. increase the physical batch size", tools/server/server.cpp
    r"input (\(\d+ tokens\) )?is too large to process",
    # GLM ("Prompt 超长", code 1261), Spark ("token数量超过上限", code 10907), Hunyuan ("输入文本过长")
    r"tokens? ?(数量)?超[出过]",
    r"(prompt|输入(文本|内容)?) ?(超长|过长)",
    r"request_too_large",  # Anthropic: more than 32 MB, of which images are most
)
_OVERFLOW = re.compile("|".join(f"(?:{sentence})" for sentence in _SENTENCES), re.IGNORECASE)
_OTHER_LIMIT = re.compile(
    r"rate[_ ]limit|tokens per (minute|hour|day)|per-(minute|day)|too many requests|throttl|please wait"
    r"|max tokens must be less"
    r"|unrecognized|unknown (parameter|argument|field|option)|unsupported|does not support|is not a valid|invalid value for",
    re.IGNORECASE,
)
"""Limits of tokens in a time, and of an answer; settings whose names hold the words."""


def is_overflow(code: str | None, message: str) -> bool:
    """Return True if an error says that the conversation exceeds the model's context."""
    text = f"{code} {message}"
    return bool(_OVERFLOW.search(text)) and not _OTHER_LIMIT.search(text)
