"""Default learning rates, by what is trained and how large it is: a rate that teaches a tiny model ruins what a pretrained one knows."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hud.client import Client
from hud.errors import HudError, NotFoundError

CREATED_HERE = "preset "
"""Beginning of a model's source if it was created with random weights on this platform; such models are tiny."""
MEASURED_PARAMETERS = 135e6
"""Size of the pretrained model on whose adapters the rates were measured: 1e-4 by reward, where 5e-4 ruined it, and 1e-3 supervised."""
_LORA, _FULL = 1e-4, 1e-5
_EXPONENT = 0.25


@dataclass(frozen=True)
class DefaultRates:
    """Peak learning rates of a model."""

    reward: float
    """Of training by reward, and of distillation."""
    supervised: float
    pairs: float
    """Of the losses dpo and bradley_terry."""
    trained: str
    """Phrase for what is trained."""

    def of(self, loss: str) -> float:
        """Return the rate of supervised training by a loss."""
        return self.supervised if loss == "cross_entropy" else self.pairs

    def note(self, rate: float) -> str:
        """Return the sentence that tells a user the rate."""
        return f"Learning rate {rate:g}, the default for {self.trained}; --lr sets another."


_TINY = DefaultRates(1e-4, 1e-3, 1e-4, "a tiny model")


async def default_rates(client: Client, model: str) -> DefaultRates:
    """Return the rates of a registered model."""
    row = await _original(client, await client.get("/v2/models/resolve", params={"model": model}))
    if is_tiny(row):
        return _TINY
    lora, parameters = row["config"].get("training") == "lora", None
    with suppress(HudError):  # The training itself names the problem.
        shape = await client.get(f"/v2/models/{row['id']}/architecture")
        parameters = shape["parameters"] or None
    return rates_by_size(parameters, lora=lora)


def rates_by_size(parameters: int | None, *, lora: bool) -> DefaultRates:
    """Return the rates of a pretrained model, with two digits; `parameters`: None if unknown.

    They are those of `MEASURED_PARAMETERS`; for larger models they fall with the fourth root of the parameters, and adapters have ten times
    the rates of full fine-tuning ("LoRA Without Regret", Thinking Machines, 2025). The root lies between the rules of the same group's
    cookbook for Qwen and for Llama (hidden sizes to the powers 0.08 and 0.78). For an adapter of 8B parameters it gives 3.6e-5 by reward, where
    that cookbook's `rl_loop.py` has 4e-5, and 3.6e-4 supervised, where the sweep in its `hyperparam_utils.py` has 3e-4 for Llama and 1e-3
    for Qwen. Pairs have a tenth of the rate by reward, as in the usual recipes of DPO.
    """
    size = max(parameters or 0, MEASURED_PARAMETERS)
    reward = (_LORA if lora else _FULL) * (MEASURED_PARAMETERS / size) ** _EXPONENT
    reward, supervised, pairs = (float(f"{factor * reward:.1e}") for factor in (1, 10, 0.1))
    named = f"{parameters / 1e9:.2f}B parameters" if parameters else "a model of unknown size"
    trained = f"an adapter of {named}" if lora else f"full fine-tuning of {named}"
    return DefaultRates(reward, supervised, pairs, trained)


async def _original(client: Client, model: dict[str, Any]) -> dict[str, Any]:
    """Return a fork with the source of the model at its root; any other model unchanged."""
    root, seen = model, {model["id"]}
    while (base := root.get("base_model_id")) is not None and base not in seen:
        seen.add(base)
        try:
            root = await client.get("/v2/models/resolve", params={"model": base})
        except NotFoundError:
            break  # It was deleted.
    return {**model, "config": {**model["config"], "source": root["config"]["source"]}}


def is_tiny(model: dict[str, Any]) -> bool:
    """Return True for a model that was created here, from random weights."""
    return str(model["config"]["source"] or "").startswith(CREATED_HERE)
