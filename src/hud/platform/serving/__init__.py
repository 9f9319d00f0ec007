"""Serving: streams of tokens from policies, wherever those live."""
