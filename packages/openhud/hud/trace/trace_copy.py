"""Copies of traces for foreign code: changes in a grader must not change what is recorded."""

from __future__ import annotations

import copy
from typing import Any

from hud.trace.steps import AgentStep, Sample, Trace


def copied_trace(trace: Trace) -> Trace:
    """Return a copy at every depth; values that cannot be copied, such as locks in `extra`, are shared."""
    copies: dict[int, Any] = {
        id(step.sample): _copied_sample(step.sample)
        for step in trace.steps
        if isinstance(step, AgentStep) and step.sample is not None
    }
    try:
        return copy.deepcopy(trace, copies)
    except Exception:
        return trace.model_copy(update={"steps": [step.model_copy() for step in trace.steps]})


def _copied_sample(sample: Sample) -> Sample:
    # A deep copy visits each token: a hundred times slower.
    lists = ("prompt_token_ids", "output_token_ids", "output_logprobs", "swaps", "pictures")
    chunks = copy.deepcopy(sample.prompt_chunks)
    update = {name: list(getattr(sample, name)) for name in lists}
    return sample.model_copy(update={**update, "prompt_chunks": chunks})
