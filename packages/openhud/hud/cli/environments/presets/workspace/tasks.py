"""Tasks of TITLE; `hud eval FOLDER/tasks.py AGENT --all` plays them."""

from env import repair

tasks = [repair(problem="mean([1, 2, 6]) gives 4.5.")]
