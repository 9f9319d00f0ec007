"""Sentences by which servers refuse a conversation that is too long, and those about other limits."""

from __future__ import annotations

import pytest

from hud.inference.context_overflow import is_overflow
from hud.inference.retries import http_trouble

TOO_LONG = {
    "OpenAI": "This model's maximum context length is 4096 tokens. However, your messages resulted in 5000 tokens.",
    "OpenAI, Responses": "Your input exceeds the context window of this model. Please adjust your input and try again.",
    "Azure": "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 509178 tokens.",
    "DeepSeek": "This model's maximum context length is 65536 tokens. However, you requested 70000 tokens (62000 in the messages, 8000 in the completion).",
    "OpenRouter": "This endpoint's maximum context length is 16384 tokens. However, you requested about 94307 tokens (94307 of text input).",
    "LiteLLM": "ContextWindowExceededError: Requested token count exceeds the model's maximum context length of 8192 tokens.",
    "Anthropic": "prompt is too long: 201130 tokens > 200000 maximum",
    "Anthropic, with the answer": "input length and `max_tokens` exceed context limit: 190000 + 16384 > 200000, decrease input length",
    "Vertex": "Unable to submit request because the input token count is 32825 but model only supports up to 32768.",
    "Gemini": "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    "Bedrock": "Input is too long for requested model.",
    "Grok": "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
    "Mistral": "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
    "Mistral, configured": "Prompt has 32769 tokens, but the configured context size is 32768 tokens",
    "Groq": "Please reduce the length of the messages or completion.",
    "Cerebras": "Please reduce the length of the messages or completion. Current length is 9000 while limit is 8192",
    "Together": "The input (516368 tokens) is longer than the model's context length (262144 tokens).",
    "Fireworks": "The prompt is too long: 40177, model maximum context length: 32767",
    "Cohere": "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 4292.",
    "Kimi": "Invalid request: Your request exceeded model token limit: 262144 (requested: 291351)",
    "Kimi, input": "Input token length too long",
    "GLM": "Prompt exceeds max length",
    "MiniMax": "invalid params, context window exceeds limit (2013)",
    "Qwen": "InternalError.Algo.InvalidParameter: Range of input length should be [1, 202745]",
    "Copilot": "prompt token count of 200000 exceeds the limit of 128000",
    "Poolside": "Input length 131393 exceeds the maximum allowed input length of 131040 tokens.",
    "vLLM": "The decoder prompt (length 5000) is longer than the maximum model length of 4096.",
    "vLLM, the engine": "The engine prompt length 1601 exceeds the max_model_len 768. Please reduce prompt.",
    "vLLM, older": "Input prompt (5000 tokens) is too long and exceeds limit of 4096",
    "vLLM, the total": "The prompt (total length 25938) is too long to fit into the model (context length 4096).",
    "vLLM, negative room": "max_tokens must be at least 1, got -186.",
    "vLLM, newer": "You passed 4097 input tokens and requested 1 output tokens. However, the model's context length is only 4096 tokens.",
    "SGLang": "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
    "SGLang, the answer": "Requested token count exceeds the model's maximum context length of 4096 tokens.",
    "SGLang, the pool": "Input length (5000 tokens) exceeds the maximum allowed length (4096 tokens). Use a shorter input.",
    "llama.cpp": "request (4390 tokens) exceeds the available context size (4096 tokens), try increasing it",
    "llama.cpp, older": "the request exceeds the available context size. try increasing the context size or enable context shift",
    "llama.cpp, in the turn": "Context size has been exceeded.",
    "llama-cpp-python": "Requested tokens (2285) exceed context window of 2048",
    "Ollama": "prompt too long; exceeded max context length by 263 tokens",
    "Ollama, input": "the input length exceeds the context length",
    "LM Studio": "Trying to keep the first 9000 tokens when context the overflows. However, the model is loaded with context length of only 4096 tokens, which is not enough.",
    "LM Studio, input": "The number of tokens to keep from the initial prompt is greater than the context length.",
    "TGI": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens and 512 `max_new_tokens`",
    "TGI, input": "Input validation error: `inputs` must have less than 4096 tokens. Given: 5000",
    "OpenAI, one text": "Invalid 'messages[1].content': string too long. Expected a string with maximum length 10485760.",
    "Anthropic, 413": "Request exceeds the maximum size",
    "SGLang, older": "Input ids are too long. The max length is 4095 but the input length is 5000",
    "TensorRT-LLM": "The sum of prompt length (5000), max_tokens (100) should not exceed max_seq_len (4096)",
    "TensorRT-LLM, room": "default_max_tokens (-904) should be greater than 0, default_max_tokens (-904) = max_seq_len (4096) - prompt_len (5000)",
    "TensorRT-LLM, pass": "prompt length (5000) should not exceed max_num_tokens (4096)",
    "TensorRT-LLM, Triton": "Prompt length (5000) exceeds maximum input length (4096).",
    "LMDeploy": "Input length 5000 exceeds session length 4096",
    "MLC": "Request prompt has 5000 tokens in total, larger than the model input length limit 4096.",
    "TabbyAPI": "Prompt length 5000 is greater than max_seq_len 4096",
    "KoboldCpp": "prompt exceeds context size",
    "transformers": "Token indices sequence length is longer than the specified maximum sequence length for this model (5000 > 4096)",
    "llama.cpp, batch": "input (5000 tokens) is too large to process. increase the physical batch size (current batch size: 512)",
    "SiliconFlow": "length of prompt_tokens (40000) must be less than max_seq_len (32768).",
    "SambaNova": "The provided prompt is 9000 tokens long, but the maximum supported sequence length is just 8192!",
    "Databricks": "prompt token count (9000) cannot exceed 8192",
    "watsonx": "the number of input tokens 9000 cannot exceed the total tokens limit 8192 for this model",
    "watsonx, input": "The input token sequence length (9000) exceeds the maximum sequence length (8192)",
    "Baidu": "prompt tokens too long",
    "GLM, in Chinese": "tokens 超出限制",
    "GitHub Models": "Request body too large for gpt-4o model. Max size: 8000 tokens.",
    "LiteLLM, its kind alone": "litellm.ContextWindowExceededError: litellm.BadRequestError: refused",
    "OpenAI, the input": "Invalid 'input': string too long. Expected a string with maximum length 10485760, but got a string with length 11000000 instead.",
    "Bedrock, Titan": "Malformed input request: expected maxLength: 50000, actual: 60000, please reformat your input and try again.",
    "Volcengine": "Total tokens of image and text exceed max message tokens",
    "GLM, code 1261": "Prompt 超长",
    "Hunyuan": "输入文本过长",
    "Spark": "token数量超过上限",
    "Snowflake": "max tokens of 8192 exceeded",
    "a model of words": "Prompt is too large: 40000 tokens > 32768",
    "a limit of input": "Input tokens exceeds max input tokens 8192",
    "a context": "The prompt is longer than the model's context",
    "a total": "Total number of tokens 9000 exceeds the model's limit 8192",
    "max sequence length": "Sequence length 5000 exceeds max sequence length 4096",
    "n_ctx": "length of prompt (5000) exceeds n_ctx (4096)",
    "Copilot, its code": "model_max_prompt_tokens_exceeded",
    "a code in words": "prompt_too_long",
    "a full context": "The context is full.",
    "an overflow": "Context overflow: 9000/8192",
    "a sequence": "Maximum sequence length exceeded: 9000 > 8192",
    "prompt and answer": "The total number of tokens (prompt + completion) exceeds the model's maximum",
    "a request": "Request too long: 200001 tokens",
    "a number": "number of tokens in prompt exceeds limit",
    "this engine": "The prompt has 600 tokens; the model's context holds 512.",
}


@pytest.mark.parametrize("server", TOO_LONG)
def test_every_servers_sentence_is_known(server):
    sentence = TOO_LONG[server]
    for status, body in [
        (400, {"error": {"message": sentence, "type": "invalid_request_error", "code": None}}),
        (400, [{"error": {"message": sentence, "code": 400, "status": "INVALID_ARGUMENT"}}]),
        (413, {"detail": sentence}),
        (422, {"error": sentence}),
        (500, {"error": {"message": sentence, "type": "server_error", "code": 500}}),
        (400, {"message": sentence}),
        (400, sentence),
    ]:
        trouble = http_trouble(status, body, {})
        assert (trouble.too_long, trouble.curable) == (True, False)


@pytest.mark.parametrize(
    "code", ["context_length_exceeded", "exceed_context_size_error", "request_too_large"]
)
def test_the_code_alone_is_enough(code):
    assert is_overflow(code, "No.")


OTHER = {
    "Groq, a minute": "Request too large for model `x` on tokens per minute (TPM): Limit 6000, Requested 8000, please reduce your message size and try again.",
    "Bedrock, throttled": "ThrottlingException: Too many tokens, please wait before trying again.",
    "OpenAI, a minute": "Rate limit reached for gpt-5 on tokens per min. Limit: 10000 / min.",
    "Cohere, the answer": "too many tokens: max tokens must be less than or equal to 4096, the maximum output for this model",
    "OpenAI, the answer": "max_tokens is too large: 100000. This model supports at most 16384 completion tokens.",
    "OpenAI, an id": "Invalid 'messages[2].tool_calls[0].id': string too long. Expected a string with maximum length 40.",
    "a schema": "Invalid schema for function 'look': 'a' is not of type 'object'.",
    "an image": "image exceeds 5 MB maximum: 6291456 bytes > 5242880 bytes",
    "a model": "The model `context` does not exist.",
    "a file": "file is too long",
    "a function's name": "function name exceeds maximum length of 64",
    "the answer's maximum": "max_tokens exceeds the model's maximum of 4096",
    "an unknown setting": "Unrecognized request argument supplied: context_length",
    "an unknown window": "Unknown parameter: 'context_window'.",
    "an unsupported setting": "Unsupported: truncation with context_window",
    "a wrong setting": "Invalid value for 'context_length': must be int",
    "tools": "The model with context length 8192 does not support tools.",
    "a field": "max_model_len is not a valid field",
    "a setting": "context_management: Extra inputs are not permitted",
}


@pytest.mark.parametrize("limit", OTHER)
def test_other_limits_are_no_overflow(limit):
    assert not http_trouble(400, {"error": {"message": OTHER[limit]}}, {}).too_long


def test_a_limit_of_the_rate_is_tried_again_whatever_its_sentence_says():
    trouble = http_trouble(429, {"error": {"message": TOO_LONG["OpenAI"]}}, {})
    assert (trouble.too_long, trouble.curable) == (False, True)


def test_the_sentence_of_the_provider_behind_openrouter_counts():
    raw = '{"error":{"message":"This model\'s maximum context length is 131072 tokens."}}'
    error = {"message": "Provider returned error", "code": 400, "metadata": {"raw": raw}}
    trouble = http_trouble(400, {"error": error}, {})
    assert trouble.too_long
    assert "131072" in trouble.description
