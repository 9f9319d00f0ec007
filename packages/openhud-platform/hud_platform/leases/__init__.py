"""Leases, rights that hold for a time: to a row of a queue, and to have a training session alone."""
