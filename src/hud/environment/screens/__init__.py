"""Screens: a browser or a desktop of its own for each run.

`browser` and `desktop` are the parts; `sandbox` is the box that their programs live in.
"""
