"""Tasks of TITLE; `hud eval FOLDER/tasks.py AGENT --all` plays them."""

from env import restock

tasks = [restock(item="lamp", wanted=5), restock(item="chair", wanted=4)]
