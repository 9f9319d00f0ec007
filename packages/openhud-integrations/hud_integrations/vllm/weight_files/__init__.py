"""Weights as files on serving nodes that share no disk with the trainer: sent over HTTP as chunks, as changes where a node has an earlier version."""
