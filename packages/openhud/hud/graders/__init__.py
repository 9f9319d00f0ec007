"""Graders: comparisons, subscores, and their combination and shaping into one reward."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hud.graders.combination import combine, combine_all, combine_any
from hud.graders.comparisons import (
    contains,
    contains_all,
    contains_any,
    exact_match,
    f1_score,
    numeric_match,
)
from hud.graders.normalization import normalize
from hud.graders.progress import training_progress
from hud.graders.results import EvaluationResult, SubScore
from hud.graders.shaping import Fade, gate, length_normalized, overlong_penalty, step_bonus
from hud.lazy import lazy

if TYPE_CHECKING:
    from hud.graders.grader import BashGrader, Grader
    from hud.graders.judge import LLMJudgeGrader
    from hud.graders.reward_model import RewardModelGrader

__all__ = [
    "BashGrader",
    "EvaluationResult",
    "Fade",
    "Grader",
    "LLMJudgeGrader",
    "RewardModelGrader",
    "SubScore",
    "combine",
    "combine_all",
    "combine_any",
    "contains",
    "contains_all",
    "contains_any",
    "exact_match",
    "f1_score",
    "gate",
    "length_normalized",
    "normalize",
    "numeric_match",
    "overlong_penalty",
    "step_bonus",
    "training_progress",
]


# An HTTP client costs time to import, and only judges need it.
__getattr__ = lazy(
    __name__,
    {
        "BashGrader": ".grader",
        "Grader": ".grader",
        "LLMJudgeGrader": ".judge",
        "RewardModelGrader": ".reward_model",
    },
)
