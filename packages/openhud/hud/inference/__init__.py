"""Model calls: retries, endpoints, prices, and one codec for each provider dialect."""
