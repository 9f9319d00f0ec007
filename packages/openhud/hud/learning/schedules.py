"""Learning-rate schedules: multiples of the peak rate by step number.

    constant   1
    linear     falls in a straight line from 1 to `floor` at the last step
    cosine     floor + (1 - floor) · ½(1 + cos(π x)),  x = progress after warm-up, in [0, 1]

Each has a linear warm-up over the first `warmup` steps, starting above 0.
"""

from __future__ import annotations

import math
from typing import Literal

ScheduleName = Literal["constant", "linear", "cosine"]


def learning_rate(
    peak: float,
    step: int,
    *,
    schedule: ScheduleName = "constant",
    total_steps: int = 0,
    warmup: int = 0,
    floor: float = 0.0,
) -> float:
    """Return the rate of one step; steps count from 0 to `total_steps - 1`.

    `floor` is a fraction of the peak. Steps past the end keep the last rate.
    """
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    if schedule == "constant":
        return peak
    span = max(total_steps - 1 - warmup, 1)
    progress = min((step - warmup) / span, 1.0)
    falling = 1.0 - progress if schedule == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
    return peak * (floor + (1.0 - floor) * falling)
