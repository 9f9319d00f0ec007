"""Asking models: retries, endpoints, prices, and one codec for each provider dialect."""
