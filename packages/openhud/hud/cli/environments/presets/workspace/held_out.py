"""Held-out tasks of TITLE, for scores of what training has not seen: `hud train MODEL FOLDER/tasks.py --held-out FOLDER/held_out.py`."""

from env import repair

held = [repair(problem="mean([-1, 1, 3]) gives 1.5.")]
