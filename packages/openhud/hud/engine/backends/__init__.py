"""Ports of services outside of the engine: training backends, which sample and train models, and sampling servers."""
