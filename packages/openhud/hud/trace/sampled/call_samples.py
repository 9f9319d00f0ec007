"""Samples of model calls as a server sends them: each prompt as its difference to an earlier turn that it extends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

MODEL_CALL = "model_call"
"""Key of a step's `extra`: `{pass, number, choice}` of the model call that it was recorded from."""
MODEL_CALLS = "model_calls"
"""Key of a trace's `extra`: counts of a program's model calls by outcome and of overridden settings, and the worst refusal."""


def expand_samples(steps: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield steps with whole prompts in their samples.

    `extends` in a packed sample is number and choice of the earlier call whose prompt and output its prompt begins with.
    """
    turns: dict[tuple[int, int], list[int]] = {}
    for step in steps:
        sample = step.get("sample")
        if sample is None:
            yield step
            continue
        before = sample.get("extends")
        ids = [*(turns[before[0], before[1]] if before else ()), *sample["prompt_token_ids"]]
        place = step["extra"][MODEL_CALL]
        turns[place["number"], place["choice"]] = [*ids, *sample["output_token_ids"]]
        rest = {name: value for name, value in sample.items() if name != "extends"}
        yield {**step, "sample": {**rest, "prompt_token_ids": ids}}
