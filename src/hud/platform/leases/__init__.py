"""Leases: the right to work on a row of a queue (`leased_queue`) or to train a model (`model_lease`), for a time."""
