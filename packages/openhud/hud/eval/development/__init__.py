"""Environments under development: reloading at changes of the source."""
