"""Prompts on a CUDA GPU: packed chunks, their attention over the pages, and how long they may hold decoding up."""
