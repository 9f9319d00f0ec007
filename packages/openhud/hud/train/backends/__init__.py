"""Places of a training run's computation: the process of the engine, or a training backend's service."""
