"""Runs as training data of Tinker: one datum for each sequence, with the advantages of its group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hud.learning.datums import Datum, make_batch
from hud.learning.wire_types import AdvantageOptions, TrajectoryPayload
from hud.train.inputs import training_inputs

if TYPE_CHECKING:
    from hud.eval.run import Run


def datums_of(
    runs: Sequence[Run],
    *,
    advantages: AdvantageOptions | None = None,
    reward_scale: float = 1.0,
    token_mean: bool = False,
) -> list[Any]:
    """Return runs as `tinker.Datum`s with the advantages of their groups; groups without signal give none.

    `token_mean`: divide the advantages by the number of sampled tokens, so that Tinker's sums become means.
    """
    batch = training_inputs(runs)
    made = make_batch(
        [payload for payload in batch.inputs if isinstance(payload, TrajectoryPayload)],
        group_ids=batch.group_ids,
        options=advantages,
        reward_scale=reward_scale,
    )
    actions = sum(datum.actions for datum in made.datums)
    scale = 1.0 / actions if token_mean and actions else 1.0
    return [datum_of(datum, scale) for datum in made.datums]


def datum_of(datum: Datum, scale: float = 1.0) -> Any:
    """Return a datum of ours as Tinker's, whose position i predicts token i + 1, with its advantages times `scale`."""
    from tinker import types

    return types.Datum(
        model_input=types.ModelInput.from_ints(datum.tokens[:-1].tolist()),
        loss_fn_inputs={
            "target_tokens": datum.tokens[1:],
            "logprobs": datum.logprobs[1:],
            "advantages": (datum.advantages[1:] * np.float32(scale)),
        },
    )
