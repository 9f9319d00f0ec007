"""GGUF, the model file of llama.cpp: its metadata, tokenizer and weights, as a Hugging Face folder."""
