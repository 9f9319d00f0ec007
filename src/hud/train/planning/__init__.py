"""Planning: memory, compute and speed of a training run before its start."""
