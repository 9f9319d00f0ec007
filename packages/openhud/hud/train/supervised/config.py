"""`SupervisedConfig`: the configuration of a supervised training run, with equal names in Python and `hud train --from`."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from hud.errors import UsageError
from hud.learning.schedules import ScheduleName
from hud.train.config import TrainConfig
from hud.train.run_settings import RunSettings


class SupervisedConfig(RunSettings):
    """A supervised training run: updates on the assistant turns of recorded runs."""

    empty_steps: ClassVar[bool] = False

    jobs: list[str] = Field(default_factory=list)
    """Ids of the jobs whose runs are trained on; none: runs are given in Python, or a file has them."""
    loss: Literal["cross_entropy", "dpo", "bradley_terry"] = "cross_entropy"
    """`cross_entropy`: the mean negative logprob of a step's assistant tokens. `dpo`: pairs of the best and the worst run of each task
    (arXiv 2305.18290). `bradley_terry`: a reward model, from such pairs."""
    pairs: str = Field(default="rewards", pattern=r"^(rewards|people(:[a-z][a-z0-9_-]{0,63})?)$")
    """Pairs of `dpo` and `bradley_terry`: `rewards` (best and worst run of a task), or `people` (runs that people compared, by the
    criterion `better`; `people:NAME` by another one)."""
    pairs_per_task: int = Field(default=1, ge=1, le=32)
    """Most pairs of a task by rewards: best and worst run, second best and second worst, ... Every task has the same weight."""
    loss_config: dict[str, float] = Field(default_factory=dict)
    """Keys of the loss: `beta` of `dpo`, which scales the logprob ratio to the reference; default 0.1."""
    epochs: int = Field(default=1, ge=1)
    """Passes over the runs."""
    steps: int | None = Field(default=None, ge=1)
    """Number of optimizer steps, in place of `epochs`; None: those of the epochs."""
    batch: int = Field(default=32, ge=1)
    """Runs per step; pairs of runs with `dpo` and `bradley_terry`."""
    min_reward: float | None = None
    """Omit runs below this reward."""
    best_of: int | None = Field(default=None, ge=2)
    """Of every so many runs of a task, the one with the highest reward alone is trained on."""
    test: str | None = None
    """File of conversations, or id of a job, whose loss is measured and which is not trained on."""
    test_share: float = Field(default=0.0, ge=0, lt=1)
    """Share of the runs that are not trained on, and whose loss is measured; of a reward model, share of the tasks with pairs."""
    lr_schedule: ScheduleName = "linear"
    """Shape of the learning rate over the steps."""
    max_grad_norm: float | None = Field(default=1.0, gt=0)
    """Maximum gradient norm; a longer gradient is scaled down."""
    eval_every: int = Field(default=0, ge=0)
    """Steps between held-out scores and losses; 0: before and after training only."""
    keep: Annotated[int, Field(ge=1)] | Literal["all"] = 1
    """Number of newest checkpoints whose files are kept, or all; always kept: the best held-out one, and those that `hud train`
    keeps."""

    @model_validator(mode="after")
    def _one_test(self) -> SupervisedConfig:
        if self.test is not None and self.test_share:
            raise ValueError("test names runs of its own, and test_share takes some: choose one")
        return self

    @model_validator(mode="after")
    def _loss_fits(self) -> SupervisedConfig:
        keys = ["beta"] if self.loss == "dpo" else []
        unknown = sorted(set(self.loss_config) - set(keys))
        if unknown:
            taken = ", ".join(keys) or "none"
            raise ValueError(
                f"the loss {self.loss!r} takes no key {unknown[0]!r}; it takes: {taken}"
            )
        if not 0 < self.beta < math.inf:
            raise ValueError(f"beta is {self.beta}; it must be above 0")
        if self.criterion is not None and not self.compares:
            raise ValueError(f"pairs={self.pairs} goes with the losses dpo and bradley_terry")
        if self.pairs_per_task > 1 and (self.criterion is not None or not self.compares):
            raise ValueError(
                "pairs_per_task goes with the losses dpo and bradley_terry, and pairs by rewards"
            )
        if self.compares:
            share = ["test_share"] if self.loss == "dpo" else []
            for name in ("min_reward", "best_of", "test", *share):
                if getattr(self, name):
                    raise ValueError(
                        f"{self.loss} compares the runs of a task, so {name} has no meaning"
                    )
        return self

    @property
    def compares(self) -> bool:
        """True for a loss of pairs."""
        return self.loss != "cross_entropy"

    @property
    def criterion(self) -> str | None:
        """Criterion of people's comparisons; None for pairs by rewards."""
        source, _, name = self.pairs.partition(":")
        return None if source == "rewards" else name or "better"

    @property
    def beta(self) -> float:
        """Scale of a pair's margin: of the logprob ratio to the reference in `dpo`; 1 for a reward model."""
        return 1.0 if self.loss == "bradley_terry" else self.loss_config.get("beta", 0.1)

    @property
    def total_steps(self) -> int:
        """Number of optimizer steps of the run. Raises `UsageError` before it is known (`over`)."""
        if self.steps is None:
            raise UsageError("The number of steps is known with the runs only.")
        return self.steps

    @property
    def loss_arguments(self) -> dict[str, Any]:
        """Arguments of `TrainingClient.forward_backward`."""
        if self.compares:
            # Its token weights hold the mean over pairs.
            return {"loss_fn": "cross_entropy", "loss_fn_config": None}
        # Means, so that the learning rate does not depend on the length of runs.
        return {"loss_fn": self.loss, "loss_fn_config": {"token_mean": 1.0}}

    @property
    def playing(self) -> TrainConfig:
        """The settings of held-out rollouts."""
        shared = {name: getattr(self, name) for name in RunSettings.model_fields}
        return TrainConfig(**shared, steps=self.total_steps)

    def is_evaluated(self, done: int) -> bool:
        """Return whether held-out scores and losses are due after so many steps."""
        every = self.eval_every
        return done in (0, self.total_steps) or (every > 0 and done % every == 0)

    def over(self, examples: int) -> SupervisedConfig:
        """Return the configuration with the number of steps over so many examples."""
        steps = self.steps or -(-examples * self.epochs // self.batch)
        return self.model_copy(update={"steps": steps})


def make_supervised_config(values: dict[str, Any]) -> SupervisedConfig:
    """Return a validated configuration; raises `UsageError` with the first problem."""
    return SupervisedConfig.checked(values, "The training configuration")
