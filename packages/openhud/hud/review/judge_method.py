"""`Method`: how a model compares the runs of a group."""

from typing import Literal

Method = Literal["scores", "ranking", "pairwise"]
