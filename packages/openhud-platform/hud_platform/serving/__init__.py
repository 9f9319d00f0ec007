"""Serving: token streams from policies, in this process or in worker processes."""
