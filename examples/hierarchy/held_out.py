"""Orders that training never sees."""

from env import manager
from tasks import order

from hud import Taskset

__all__ = ["held_out", "manager"]

held_out = Taskset("manager-held-out", map(order, range(15_000, 15_080)))
