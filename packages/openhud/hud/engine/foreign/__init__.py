"""Decoders outside the Llama, Qwen2 and Qwen3 families, and how each of them is computed exactly."""
