"""Sampling by vLLM servers over HTTP, written from vLLM's published API (`docs/decisions/0009-vllm-over-http.md` says of which version)."""
