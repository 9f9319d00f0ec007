"""Tasks of TITLE; `hud eval FOLDER/tasks.py AGENT --all` plays them."""

from env import BOOKS, env, sort  # noqa: F401  (a runtime finds the environment here)

tasks = [sort(title=title, about=about) for title, about in BOOKS.items()]
