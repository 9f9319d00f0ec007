"""GSPO with advantages for each token (arXiv 2507.18071, section 4.3), in numpy.

    s = exp(mean over the mask of lp - q)        loss = -Σ min(s A, clamp(s, lo, hi) A)

Each token's ratio has the value s and the gradient of its own logprob, so dC/dlp is -s A, or 0 where the clamp is the smaller.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hud.learning.datums import Floats
from hud.learning.losses.action_tokens import MAX_LOG_RATIO
from hud.learning.losses.config import LossConfig


def sequence_ratio_weights(
    logprobs: Floats,
    sampling_logprobs: Floats,
    advantages: Floats,
    mask: npt.NDArray[np.bool_],
    loss: LossConfig,
) -> tuple[float, Floats]:
    """Return the loss of one sequence, and (T,) -dC/dlp. An empty mask gives the ratio 1."""
    gap = (logprobs.astype(np.float64) - sampling_logprobs)[mask]
    ratio = np.exp(np.clip(gap.mean() if len(gap) else 0.0, -MAX_LOG_RATIO, MAX_LOG_RATIO))
    held = np.clip(ratio, loss["clip_low_threshold"], loss["clip_high_threshold"])
    wide = advantages.astype(np.float64)
    values = np.minimum(ratio * wide, held * wide)
    pulls = np.where(ratio * wide <= held * wide, ratio * wide, 0.0)
    return -float(values.sum()), pulls.astype(np.float32)
