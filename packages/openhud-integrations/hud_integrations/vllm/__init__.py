"""Sampling by vLLM servers over HTTP, for the version of vLLM's API in `docs/decisions/0009-vllm-over-http.md`."""
