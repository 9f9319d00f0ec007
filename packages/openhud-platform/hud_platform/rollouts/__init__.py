"""Rollouts that the platform plays: the leased queue and its workers."""
