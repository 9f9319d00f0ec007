"""Rollouts of training: groups, roles, synchronous and asynchronous sampling."""
