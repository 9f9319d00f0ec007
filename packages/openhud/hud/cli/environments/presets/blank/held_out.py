"""Held-out tasks of TITLE, for scores of what training has not seen: `hud train MODEL FOLDER/tasks.py --held-out FOLDER/held_out.py`."""

from env import count

held = [count(word="raspberry", letter="r"), count(word="papaya", letter="p")]
