"""Questions for the clerk that training never asks."""

from clerk_tasks import question
from env import clerk

from hud import Taskset

__all__ = ["clerk", "held_out"]

held_out = Taskset("clerk-held-out", map(question, range(5000, 5080)))
