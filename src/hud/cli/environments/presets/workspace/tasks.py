"""Tasks of TITLE; `hud eval FOLDER/tasks.py AGENT --all` plays them."""

from env import env, repair  # noqa: F401  (a runtime finds the environment here)

tasks = [repair(problem="mean([1, 2, 6]) gives 4.5.")]
