"""Overrides of what a program sets for sampling, so that its turns can be trained on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hud.inference.dialects.request import GenerationRequest, ToolChoice
from hud_platform.access.run_grant import RunGrant

SEEDS_OF_A_CALL = 1024
"""Distance of the seeds of two calls: each choice of a call has its own."""


def overridden(
    request: GenerationRequest, grant: RunGrant, number: int, *, local: bool
) -> tuple[GenerationRequest, list[str]]:
    """Return the request of a run's call as it is sampled, and the names of overridden settings.

    `local`: a model of this server, whose turns are trained on. `number`: number of the call, for its seed.
    """
    changed, names = _set_by_run(request, grant, number)
    if local and grant.trainable:
        changed, forced = _trainable(changed, chosen="temperature" in grant.sampling)
        names = list(dict.fromkeys([*names, *forced]))
    return changed, names


def _set_by_run(
    request: GenerationRequest, grant: RunGrant, number: int
) -> tuple[GenerationRequest, list[str]]:
    sampling, own = request.sampling, dict(grant.sampling)
    seed, bound = own.pop("seed", None), own.pop("max_tokens", None)
    if "stop" in own:
        own["stop"] = tuple(own["stop"])
    names = [name for name, value in own.items() if getattr(sampling, name) not in (value, None)]
    changes: dict[str, Any] = dict(own)
    if seed is not None:
        changes["seed"] = seed + SEEDS_OF_A_CALL * number
    if bound is not None:
        changes["max_tokens"] = sampling.most_tokens(bound)
        if sampling.max_tokens is not None and sampling.max_tokens > bound:
            names.append("max_tokens")
    return replace(request, sampling=replace(sampling, **changes)), names


def _trainable(request: GenerationRequest, *, chosen: bool) -> tuple[GenerationRequest, list[str]]:
    """Replace settings that would cut the distribution, or make it greedy where the run has not `chosen` its temperature."""
    names: list[str] = []
    sampling = request.sampling
    if sampling.effective_top_p < 1.0:
        names.append("top_p")
    if sampling.effective_top_k:
        names.append("top_k")
    sampling = replace(sampling, top_p=None, top_k=None)
    if sampling.effective_temperature == 0.0 and not chosen:
        names.append("temperature")
        sampling = replace(sampling, temperature=1.0)
    choice = request.tool_choice
    if choice.mode == "required":
        names.append("tool_choice")
        choice = ToolChoice()
    if request.format is not None:
        names.append("format")
    return replace(request, sampling=sampling, tool_choice=choice, format=None), names
