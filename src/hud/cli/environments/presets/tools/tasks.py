"""Tasks of TITLE; `hud eval FOLDER/tasks.py AGENT --all` plays them."""

from env import env, shopping  # noqa: F401  (a runtime finds the environment here)

tasks = [
    shopping(items=["apple", "bread"]),
    shopping(items=["cheese"]),
    shopping(items=["apple", "bread", "cheese"]),
]
