"""Memory of a training whose policy plays with subagents: every model of it on one GPU.

Models are counted whole. Adapters of one base share its weights and its key-value cache on a GPU, which takes less.
"""

from __future__ import annotations

from dataclasses import dataclass

from hud.engine.memory.one_gpu import SharedGpu
from hud.engine.sample.cache_budget import PLANNED_LEAST


@dataclass(frozen=True)
class PlayedModel:
    """A model of a stage."""

    model: str
    trained: bool
    """False: a frozen subagent, which is only sampled."""
    plan: SharedGpu

    @property
    def weights(self) -> float:
        return self.plan.trainer.weights

    @property
    def states(self) -> float:
        """Gradients and optimizer states; 0 for a frozen model."""
        return self.plan.trainer.gradients + self.plan.trainer.optimizer if self.trained else 0.0

    @property
    def cache(self) -> float:
        """Least size of its cache: the models' caches divide what is left."""
        return min(self.plan.cache, PLANNED_LEAST)


@dataclass(frozen=True)
class StageMemory:
    """Bytes of one GPU that trains and samples the models of a stage."""

    name: str
    models: tuple[PlayedModel, ...]
    """The policy first."""
    elsewhere: tuple[str, ...] = ()
    """Reasons, in sentences, for subagents without a model here: a provider has the weights, for example."""
    judge: str | None = None
    """Most requests to a judge of groups, as text; None: there are none."""

    @property
    def passing(self) -> float:
        """Activations and logits of the largest pass: models are updated one after the other."""
        return max(
            model.plan.trainer.activations + model.plan.passing
            for model in self.models
            if model.trained
        )

    @property
    def left(self) -> float:
        """Usable memory that nothing takes; below 0: the stage does not fit."""
        resident = sum(model.weights + model.states + model.cache for model in self.models)
        return self.models[0].plan.usable - resident - self.passing

    @property
    def remedies(self) -> list[str]:
        """Options that need less, of any trained model."""
        remedies = [
            remedy for model in self.models if model.trained for remedy in model.plan.remedies
        ]
        return list(dict.fromkeys(remedies))
