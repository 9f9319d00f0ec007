"""Tasks of TITLE; `hud eval FOLDER/tasks.py AGENT --all` plays them."""

from env import buy

tasks = [buy(item="lamp"), buy(item="chair")]
