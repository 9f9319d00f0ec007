"""Tasks of TITLE; `hud eval FOLDER/tasks.py AGENT --all` plays them."""

from env import count

tasks = [
    count(word="strawberry", letter="r"),
    count(word="banana", letter="a"),
    count(word="cherry", letter="z"),
]
