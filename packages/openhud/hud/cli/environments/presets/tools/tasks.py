"""Tasks of TITLE; `hud eval FOLDER/tasks.py AGENT --all` plays them."""

from env import shopping

tasks = [
    shopping(items=["apple", "bread"]),
    shopping(items=["cheese"]),
    shopping(items=["apple", "bread", "cheese"]),
]
