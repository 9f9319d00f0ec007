"""Held-out tasks of TITLE, for scores of what training has not seen: `hud train MODEL FOLDER/tasks.py --held-out FOLDER/held_out.py`."""

from env import restock

held = [restock(item="table", wanted=3), restock(item="lamp", wanted=7)]
