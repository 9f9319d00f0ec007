"""The combinations of a sweep: the product of values of training settings, all validated before any is played."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from hud.errors import UsageError
from hud.eval.tasksets.suggestions import did_you_mean
from hud.train.run_settings import RunSettings

MOST_COMBINATIONS = 16
"""Combinations above which a sweep must be confirmed."""
SEED = "seed"
"""The setting whose values are repetitions, not alternatives."""
_OF_LOSS = "loss_config"
_ALONE = ("promote", "joined", "metrics_file", "plot", "profile")
"""Settings that trainings of one sweep cannot share."""


@dataclass(frozen=True)
class Combination:
    """A training of a sweep."""

    label: str
    """Swept settings with their values, such as `lr=1e-05 seed=1`."""
    swept: dict[str, Any]
    """Values by name of the setting; `loss_config.KEY` for a key of the loss."""
    config: RunSettings
    """Its settings, with the swept model; a fork of that is trained."""

    @property
    def setting(self) -> str:
        """The label without the seed: equal for repetitions."""
        return _label({name: value for name, value in self.swept.items() if name != SEED})


def combinations(
    make: Callable[[dict[str, Any]], RunSettings],
    settings: Mapping[str, Any],
    axes: Mapping[str, Sequence[Any]],
) -> list[Combination]:
    """Return the product of `axes`, values by name of a numeric, boolean or choice setting, over `settings`.

    `make` validates settings, such as `make_config`. Values may be texts, as on the command line. Raises `UsageError` for an unknown
    setting, a value of the wrong type, fewer than two different values, and a setting that is also fixed.
    """
    base = make(dict(settings))
    for name in _ALONE:
        if name in base.model_fields_set and getattr(base, name) not in (None, [], "always"):
            raise UsageError(f"Trainings of a sweep cannot share {name}; leave it out.")
    for name, values in axes.items():
        _check_axis(base, settings, name, values)
    made: dict[str, Combination] = {}
    for values in product(*axes.values()):
        combined = dict(settings)
        for name, value in zip(axes, values, strict=True):
            root, _, key = name.partition(".")
            combined[root] = {**combined.get(root, {}), key: value} if key else value
        config = make(combined)
        swept = {name: _value_of(config, name) for name in axes}
        label = _label(swept)
        if label in made:
            raise UsageError(f"The sweep has {label} twice; give each value once.")
        made[label] = Combination(label, swept, config)
    return list(made.values())


def _check_axis(
    base: RunSettings, settings: Mapping[str, Any], name: str, values: Sequence[Any]
) -> None:
    """Raise `UsageError` for a setting that cannot be swept, or is swept by fewer than two values."""
    schemas = type(base).model_json_schema()["properties"]
    root, _, key = name.partition(".")
    if root not in schemas:
        names = [field for field in schemas if _is_swept(field, schemas)]
        hint = did_you_mean(name, names)
        raise UsageError(f"There is no setting {name!r} to sweep{hint}")
    if not (root == _OF_LOSS if key else _is_swept(name, schemas)):
        raise UsageError(
            f"{name} is neither a number nor a choice, or is shared by all trainings, so it cannot be swept."
        )
    if name in settings or (key and key in settings.get(root, {})):
        raise UsageError(f"{name} is both fixed and swept; give one of them.")
    if len(values) < 2:
        raise UsageError(f"The sweep of {name} has one value; give several, such as {name}=A,B.")


def _is_swept(name: str, schemas: Mapping[str, Any]) -> bool:
    """Return True for a setting with numbers, booleans or choices; a built-in loss is a choice, too."""
    parts = schemas[name].get("anyOf", [schemas[name]])
    if name in _ALONE:
        return False
    scalar = any(
        "enum" in part or part.get("type") in ("number", "integer", "boolean") for part in parts
    )
    return scalar or name == "loss"


def _value_of(config: RunSettings, name: str) -> Any:
    root, _, key = name.partition(".")
    return getattr(config, root)[key] if key else getattr(config, name)


def _label(swept: Mapping[str, Any]) -> str:
    return " ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in swept.items()
    )
