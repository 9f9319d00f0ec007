"""Credit below the run: from rewards of turns to advantages of turns.

    G_t = Σ_{k >= t} γ^(k-t) r_k        A_t = A + w · (G_t - b_t)        γ = turn_discount, w = turn_weight

with A the run's advantage and b_t the baseline over the runs of the group that have a turn t: turn-level and outcome advantages
are added (MT-GRPO, arXiv 2505.11821). Without rewards of turns, every turn has the run's advantage.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import numpy as np

from hud.trace import AgentStep, Trace

MOST = sys.float_info.max
TurnRewards = Sequence[float] | None
"""One number for each turn of a run; None: the run has no rewards of turns."""


def turn_rewards_of(trace: Trace) -> list[float] | None:
    """Return the rewards of a run's turns, one for each of the agent's steps, from its last grade; None without any."""
    frames = [
        step.task_call.result
        for step in trace.steps
        if step.task_call is not None and step.task_call.phase == "evaluate"
    ]
    frame = frames[-1] if frames else None
    rewards = frame.get("turn_rewards") if isinstance(frame, dict) else None
    turns = sum(isinstance(step, AgentStep) for step in trace.steps)
    if not isinstance(rewards, list) or len(rewards) != turns or not rewards:
        return None
    if not all(isinstance(reward, int | float) and abs(reward) <= MOST for reward in rewards):
        return None  # A trace may be anyone's.
    return [float(reward) for reward in rewards]


def sample_turn_rewards(trace: Trace) -> list[float] | None:
    """Return the rewards of a run's sampled turns.

    A turn without tokens adds its reward to the sampled turn before it; before the first one, nothing is to be credited.
    """
    rewards = turn_rewards_of(trace)
    if rewards is None:
        return None
    sampled: list[float] = []
    turns = (step for step in trace.steps if isinstance(step, AgentStep))
    for step, reward in zip(turns, rewards, strict=True):
        if step.sample and step.sample.output_token_ids:
            sampled.append(reward)
        elif sampled:
            sampled[-1] += reward
    return sampled


def returns_to_go(rewards: Sequence[float], discount: float) -> list[float]:
    """Return G_t of each turn: its reward and the discounted rewards of all later turns."""
    returns, following = [], 0.0
    for reward in reversed(rewards):
        following = reward + discount * following
        returns.append(following)
    return returns[::-1]


def returns_by_turn(rewards: Sequence[TurnRewards], discount: float) -> list[dict[int, float]]:
    """Return for each turn the returns of the runs of a group that have it, by the run's place in the group."""
    by_turn: list[dict[int, float]] = []
    for place, own in enumerate(rewards):
        for turn, value in enumerate(returns_to_go(own or (), discount)):
            if turn == len(by_turn):
                by_turn.append({})
            by_turn[turn][place] = value
    return by_turn


def turn_terms(
    rewards: Sequence[TurnRewards],
    discount: float,
    baseline: Callable[[list[float]], list[float]],
    generator: np.random.Generator | None = None,
) -> list[list[float] | None]:
    """Return G_t - b_t for each turn of each run of a group, as `baseline` compares the returns of one turn.

    None for a run without rewards of turns. With `generator`, the terms of each turn change places among its runs.
    """
    terms: list[list[float] | None] = [None if own is None else [] for own in rewards]
    for returns in returns_by_turn(rewards, discount):
        values = baseline(list(returns.values()))
        if generator is not None:
            values = [float(value) for value in generator.permutation(values)]
        for place, value in zip(returns, values, strict=True):
            own = terms[place]
            assert own is not None
            own.append(value)
    return terms
