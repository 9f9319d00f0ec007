"""Companions of exported weights: the model card, and uploads to a hub."""
