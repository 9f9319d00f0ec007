"""Leases, rights that hold for a time: to a row of a queue, to train a model, to have a training session alone."""
