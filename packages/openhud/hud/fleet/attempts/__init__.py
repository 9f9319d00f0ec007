"""Attempts at rollouts that a worker holds, and what they recorded on its way to the platform."""
