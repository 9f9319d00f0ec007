"""Sampled tokens with colours: by probability, by the run's advantage, or by the gap between the trainer's and the
sampler's logprob."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hud.errors import HudError
from hud.learning.advantages import compute_advantages
from hud_dashboard.queries.trace_windows import Drawn

if TYPE_CHECKING:
    from hud_platform.gateway.detokenizing import Vocabulary
    from hud_platform.models.registry import Registry
    from hud_platform.store.trainer_logprobs import PassWeights

MOST_TOKENS = 2_000
"""Maximum number of tokens of one step on a page."""
SURPRISE = (0.05, 0.36, 1.2, 2.3, 4.6)
"""Thresholds of the colours, as negative logprobs: probabilities 95%, 70%, 30%, 10% and 1%."""
GAPS = (0.001, 0.01, 0.05, 0.2, 0.7)
"""Thresholds of the colours, as absolute gaps; 0.7 is a factor of two."""

NO_GAP = (
    "No gap can be shown: no training pass has computed this run, because it was never trained on, or all rewards of "
    "its group are equal."
)

View = dict[str, Any]


class Vocabularies:
    """Vocabularies of the models on a page."""

    def __init__(self, registry: Registry, model: str | None) -> None:
        self._registry = registry
        self._model = model
        self._known: dict[str | None, Vocabulary | None] = {}

    def of(self, checkpoint: str | None) -> Vocabulary | None:
        """Return the vocabulary of a checkpoint's model, or of the run's model; None if its files are missing."""
        if checkpoint not in self._known:
            self._known[checkpoint] = self._find(checkpoint)
        return self._known[checkpoint]

    def _find(self, checkpoint: str | None) -> Vocabulary | None:
        from tokenizers import Tokenizer

        from hud_platform.gateway.detokenizing import Vocabulary

        try:
            if checkpoint is not None:
                # Only among the team's models: a trace may contain any checkpoint id.
                model = self._registry.model(self._registry.tree.get(checkpoint).model_id)
            elif self._model is not None:
                model = self._registry.model(self._model)
            else:
                return None
            file = Path(model.folder or "") / "tokenizer.json"
            return Vocabulary(Tokenizer.from_file(str(file)))
        except HudError:
            return None
        except Exception as error:  # tokenizers raises bare Exception
            if type(error) is Exception:
                return None
            raise


def advantage_of(group: Sequence[tuple[str, float | None, str | None]], trace_id: str) -> View:
    """Return `{value, scale, sentence}`: a run's advantage in its group, computed as by default in GRPO."""
    own_reward = next((reward for name, reward, _ in group if name == trace_id), None)
    if len(group) < 2:
        return _unknown("This run has no group, so it has no advantage.")
    if own_reward is None:
        return _unknown("This run has no reward, so it has no advantage.")
    rewards = [math.nan if reward is None else reward for _, reward, _ in group]
    failures = [failure for _, _, failure in group]
    try:
        advantages = compute_advantages(
            rewards, group_ids=["group"] * len(group), failures=failures
        )
    except HudError as error:
        return _unknown(str(error))
    place = next(number for number, (name, _, _) in enumerate(group) if name == trace_id)
    counted = [reward for reward, enters in zip(rewards, advantages.counted, strict=True) if enters]
    if not advantages.counted[place]:
        if failures[place] is None:
            return _unknown("Too few runs of the group count, so there is no advantage.")
        return _unknown(f"This run failed ({failures[place]}), so its reward does not count.")
    if not any(advantages.trained):
        return _unknown(
            f"All {len(counted)} runs of the group that count have the reward {own_reward:.3f}: every advantage is 0, "
            "and the group gives no training signal."
        )
    mean = sum(counted) / len(counted)
    value = advantages.values[place]
    return {
        "value": value,
        "scale": max(abs(advantage) for advantage in advantages.values),
        "sentence": f"Advantage {value:+.3f}".replace("-", "−")
        + f": reward {own_reward:.3f} against a mean of {mean:.3f} over the {len(counted)} runs "
        "of the group that count. Every token of the run carries it, plus its turn's where turns have rewards.",
    }


def gap_sentence(
    registry: Registry, gaps_of_pass: tuple[PassWeights, npt.NDArray[np.float64]] | None
) -> str:
    """Return a sentence about a run's logprob gaps: their size, and the trainer's weights."""
    if gaps_of_pass is None:
        return NO_GAP
    weights, gaps = gaps_of_pass
    try:
        model = registry.model(weights.model_id).slug
    except HudError:
        model = "a removed model"
    named = f", checkpoint {weights.checkpoint[:8]}" if weights.checkpoint else ""
    when = f"at step {weights.step} of {model}{named}"
    if not len(gaps):
        return f"The trainer computed this run {when}, but no logprobs of the sampler are recorded for comparison."
    sizes = f"mean {gaps.mean():.3g}, 99th percentile {np.quantile(gaps, 0.99):.3g}, largest {gaps.max():.3g}"
    return f"Gap between sampler and trainer over {len(gaps):,} tokens: {sizes}. The trainer computed them {when}."


def shown_tokens(
    drawn: Drawn,
    vocabulary: Vocabulary | None,
    by: str,
    advantage: View | None,
    computed: Sequence[float],
) -> View:
    """Return the tokens of a step as `{tokens: [{text, level, title}], ...}`; levels are names of CSS classes.

    `computed` are the trainer's logprobs, one for each token (NaN: not computed), or empty.
    """
    texts = _texts(drawn.ids[:MOST_TOKENS], vocabulary)
    swaps = dict(drawn.swaps)
    tokens = []
    for place, text in enumerate(texts):
        logprob = drawn.logprobs[place] if place < len(drawn.logprobs) else None
        lines = [f"token {drawn.ids[place]}"]
        level = ""
        if logprob is not None and math.isfinite(logprob):
            lines.append(f"logprob {logprob:.3f}, probability {math.exp(min(0.0, logprob)):.1%}")
            if by == "logprob":
                level = _level("s", -logprob, SURPRISE)
            if by == "gap" and place < len(computed) and math.isfinite(computed[place]):
                gap = abs(computed[place] - logprob)
                lines.append(f"trainer {computed[place]:.3f}, gap {gap:.3g}")
                level = _level("s", gap, GAPS)
        if by == "advantage" and advantage is not None and advantage["value"] is not None:
            level = _signed(advantage["value"], advantage["scale"])
        tokens.append(
            {
                "text": text,
                "level": level,
                "title": "; ".join(lines),
                "swap": swaps.get(place, "") if place in swaps else None,
            }
        )
    finite = [value for value in drawn.logprobs if math.isfinite(value)]
    return {
        "tokens": tokens,
        "more": max(0, len(drawn.ids) - MOST_TOKENS),
        "count": len(drawn.ids),
        "mean": sum(finite) / len(finite) if finite else None,
        "least": min(finite) if finite else None,
        "temperature": drawn.temperature,
        "checkpoint": drawn.checkpoint,
        "read": vocabulary is not None,
    }


def _texts(ids: list[int], vocabulary: Vocabulary | None) -> list[str]:
    if vocabulary is None:
        return [f"{token} " for token in ids]
    return [vocabulary.text(token) or f"[{token}]" for token in ids]


def _level(name: str, value: float, bounds: Sequence[float]) -> str:
    reached = sum(value >= bound for bound in bounds)
    return f"{name}{reached}" if reached else ""


def _signed(value: float, scale: float) -> str:
    if not value or not scale:
        return ""
    strength = 1 + min(2, int(3 * abs(value) / scale))
    return f"{'up' if value > 0 else 'down'}{strength}"


def _unknown(sentence: str) -> View:
    return {"value": None, "scale": None, "sentence": sentence}
