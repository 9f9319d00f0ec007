"""Tasks of TITLE; `hud eval FOLDER/tasks.py AGENT --all` plays them."""

from env import env, restock  # noqa: F401  (a runtime finds the environment here)

tasks = [restock(item="lamp", wanted=5), restock(item="chair", wanted=4)]
