"""Questions about items that training never names.

    hud eval examples/depot/held_out.py AGENT --all

In a file of its own, so that nobody trains on it by naming the wrong list.
"""

from env import HELD_OUT, env
from tasks import question

from hud import Taskset

__all__ = ["env", "held_out"]

held_out = Taskset(
    "depot-held-out", [question(item, seed) for seed, item in enumerate(HELD_OUT, 1000)]
)
