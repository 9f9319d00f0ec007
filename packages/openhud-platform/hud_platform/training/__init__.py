"""Training: sessions over a model's weights, teachers and reward models, and records of training runs."""
