"""Rollouts of training: groups, roles, sampling in turns or ahead."""
