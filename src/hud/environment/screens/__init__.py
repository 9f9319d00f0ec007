"""Screens: a browser or a desktop of its own for each run.

`browser` and `desktop` are the parts; `box` is the sandbox that their programs live in.
"""
