"""Planning: estimates of a training run's memory, compute and speed."""
