"""Tasks of TITLE; `hud eval FOLDER/tasks.py AGENT --all` plays them."""

from env import BOOKS, sort

tasks = [sort(title=title, about=about) for title, about in list(BOOKS.items())[:3]]
