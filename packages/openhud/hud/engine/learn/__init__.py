"""Training: gradients of packed passes, and optimizer steps, on one or several ranks."""
