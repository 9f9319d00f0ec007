"""Losses and their options: `loss_fn` and `loss_fn_config`, checked by name.

On the wire a configuration is flat, text to number. `docs/losses.md` lists the keys; a key that a loss does not take is an
error, never ignored. Needs no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from hud.errors import UsageError

Normalization = Literal["token_sum", "token_mean", "sequence_mean", "dr_grpo"]

DEFAULTS: dict[str, dict[str, float]] = {
    "cross_entropy": {},
    "importance_sampling": {},
    "ppo": {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2},
    "cispo": {"clip_low_threshold": 0.0, "clip_high_threshold": 4.0},
    "dro": {"beta": 0.05},
    "gspo": {"clip_low_threshold": 1 - 3e-4, "clip_high_threshold": 1 + 4e-4},
    "dppo": {"mask_low": 0.2, "mask_high": 0.2, "square_coef": 0.0},
}
"""The losses, with the keys specific to each."""

_NORMALIZATIONS: dict[str, Normalization] = {
    "token_mean": "token_mean",
    "sequence_mean": "sequence_mean",
    "dr_grpo_length": "dr_grpo",
}
"""The keys that choose a normalization other than `token_sum`."""
_SHARED = {
    "kl_coef": 0.0,
    "kl_estimator": 3.0,
    "kl_top": 20.0,
    "entropy_coef": 0.0,
    **dict.fromkeys(_NORMALIZATIONS, 0.0),
}
# These need the sampler's logprobs or an advantage, which supervised data does not have.
_POLICY_ONLY = {"kl_advantage_coef": 0.0}
_DUAL = ("ppo", "gspo")
"""Losses whose clip leaves a negative advantage's weight without a bound."""
_BOUNDED = ("ppo", "cispo", "gspo", "dppo")
"""Losses that bound their importance weights by themselves."""
_PAIRS = {"icepop": (0.5, 2.0), "sequence_mask": (0.99, 1.01), "outlier_mask": (1e-4, 100.0)}
_CAPS = ("tis_token_cap", "tis_sequence_cap")
_NON_NEGATIVE = ("beta", "square_coef", "dr_grpo_length", "mask_low", "mask_high", "kl_coef")


@dataclass(frozen=True)
class LossConfig:
    """A loss with its complete configuration."""

    loss_fn: str
    values: dict[str, float] = field(default_factory=dict)
    normalization: Normalization = "token_sum"

    def __getitem__(self, key: str) -> float:
        return self.values.get(key, 0.0)

    def __contains__(self, key: str) -> bool:
        return key in self.values

    @property
    def needs_reference(self) -> bool:
        """True when the loss compares with a reference policy."""
        return bool(self["kl_coef"] or self["kl_advantage_coef"])

    @property
    def reference_top(self) -> int:
        """Number of the reference's likeliest tokens that the KL over distributions tells apart; 0: no such KL."""
        return int(self["kl_top"]) if self["kl_coef"] and self["kl_estimator"] == 0 else 0

    @property
    def needs_entropy(self) -> bool:
        """True when the loss takes the entropy of the whole distribution."""
        return bool(self["entropy_coef"])

    @property
    def factor(self) -> Literal["advantages", "weights"] | None:
        """The column of `ActionTokens` that every token's loss is a multiple of: a token with 0 there has no gradient.

        None for a loss with other terms, or whose terms mix tokens.
        """
        if self.needs_reference or self.needs_entropy:
            return None
        if self.supervised:
            return "weights"
        alone = self.loss_fn in ("importance_sampling", "ppo", "cispo")
        if alone or (self.loss_fn == "dppo" and not self["square_coef"]):
            return "advantages"
        return None

    @property
    def supervised(self) -> bool:
        """True when no sampler's logprobs are needed."""
        return self.loss_fn == "cross_entropy"

    @property
    def bounds_ratios(self) -> bool:
        """True for bounded importance weights, by the loss itself or by a correction."""
        # A cap bounds its own factor; importance_sampling also multiplies by the uncapped ratio.
        caps = _CAPS if self.loss_fn == "dro" else ()
        bounds = ("icepop_high", "outlier_mask_high", *caps)
        return self.loss_fn in _BOUNDED or any(name in self for name in bounds)

    @property
    def corrects(self) -> bool:
        """True when a correction for the sampler is on."""
        names = (*_CAPS, *(f"{pair}_low" for pair in _PAIRS))
        return any(name in self.values for name in names)


def available_losses() -> list[str]:
    """Return the names that `loss_fn` may take."""
    return list(DEFAULTS)


def parse_loss(loss_fn: str, config: Mapping[str, float] | None = None) -> LossConfig:
    """Return a loss with its configuration; raises `UsageError` for an unknown name or key and for a wrong value."""
    if loss_fn not in DEFAULTS:
        raise UsageError(f"There is no loss {loss_fn!r}; there are: {', '.join(DEFAULTS)}.")
    overrides = dict(config or {})
    own = DEFAULTS[loss_fn]
    _check_keys(loss_fn, overrides)
    values = {**own, **_SHARED}
    if loss_fn != "cross_entropy":
        values |= _POLICY_ONLY
    if "epsilon" in overrides:
        epsilon = overrides.pop("epsilon")
        if overrides.keys() & own.keys():
            raise UsageError("Give epsilon or the clip thresholds to 'ppo', not both.")
        overrides |= {"clip_low_threshold": 1 - epsilon, "clip_high_threshold": 1 + epsilon}
    for pair, (low, high) in _PAIRS.items():
        if f"{pair}_low" in overrides or f"{pair}_high" in overrides:
            values |= {f"{pair}_low": low, f"{pair}_high": high}
    values |= {key: float(value) for key, value in overrides.items()}
    _check_values(values)
    return LossConfig(loss_fn=loss_fn, values=values, normalization=_normalization(values))


def keys_of(loss_fn: str) -> list[str]:
    """Return the configuration keys that a loss takes."""
    keys = [*DEFAULTS[loss_fn], *(["epsilon"] if loss_fn == "ppo" else []), *_SHARED]
    if loss_fn in _DUAL:
        keys.append("dual_clip")
    if loss_fn != "cross_entropy":
        bounds = [f"{pair}_{side}" for pair in _PAIRS for side in ("low", "high")]
        keys += [*_POLICY_ONLY, *_CAPS, *bounds]
    return keys


def _check_keys(loss_fn: str, overrides: Mapping[str, float]) -> None:
    keys = keys_of(loss_fn)
    for key, value in overrides.items():
        if key not in keys:
            raise UsageError(
                f"The loss {loss_fn!r} takes no key {key!r}; it takes: {', '.join(keys)}."
            )
        if not math.isfinite(value):
            raise UsageError(f"{key} of the loss {loss_fn!r} is {value}; it must be finite.")


def _check_values(values: Mapping[str, float]) -> None:
    for key in values:
        if key.endswith(("_low", "_low_threshold")) and key not in _NON_NEGATIVE:
            other = key.replace("_low", "_high")
            if not values[key] < values[other]:
                raise UsageError(f"{key} ({values[key]}) must be below {other} ({values[other]}).")
    for key in (*_NON_NEGATIVE, *_CAPS):
        if values.get(key, 0.0) < 0:
            raise UsageError(f"{key} is {values[key]}; it must not be negative.")
    if values.get("dual_clip", math.inf) <= values.get("clip_high_threshold", 0.0):
        raise UsageError(
            f"dual_clip ({values['dual_clip']}) must be above clip_high_threshold ({values['clip_high_threshold']})."
        )
    if values["kl_estimator"] not in (0, 1, 2, 3):
        raise UsageError(f"kl_estimator is {values['kl_estimator']}; it must be 0, 1, 2 or 3.")
    if values["kl_top"] < 1 or values["kl_top"] % 1:
        raise UsageError(f"kl_top is {values['kl_top']}; it must be a whole number from 1 up.")


def _normalization(values: Mapping[str, float]) -> Normalization:
    chosen = [name for key, name in _NORMALIZATIONS.items() if values[key]]
    if len(chosen) > 1:
        raise UsageError(f"Choose one normalization, not {' and '.join(chosen)}.")
    return chosen[0] if chosen else "token_sum"
