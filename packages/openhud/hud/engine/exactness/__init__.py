"""The check of exactness: whether a model's class is computed as by plain `transformers`, tried on a small random model of it."""
