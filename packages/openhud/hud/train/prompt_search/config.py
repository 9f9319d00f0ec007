"""`PromptSearchConfig`: the configuration of a search of a system prompt."""

from __future__ import annotations

import hashlib
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hud.errors import UsageError
from hud.train.config import TrainConfig

# Settings of execution and length: changing them continues the same search.
_NOT_THE_SEARCH = frozenset(
    {"budget", "hour_price", "max_concurrent", "rollout_timeout", "min_gain", "patience"}
)


class PromptSearchConfig(BaseModel):
    """A search of a system prompt."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    model: str
    """Slug or id of the model."""
    tasks: str = ""
    """Training tasks: a file or folder. Python callers may pass a Taskset."""
    held_out: list[str] = Field(default_factory=list)
    """Held-out tasks that judge the result: files, folders, or `benchmark:NAME`."""
    held_out_share: float = Field(default=0.4, gt=0, lt=1)
    """Without held-out tasks: share of the tasks that is held out, chosen by the seed."""
    reflector: str | None = None
    """Model that proposes prompts: a slug, http://HOST/v1 of a server, or path.py:policy. None: the model itself."""
    budget: str = "1000rollouts"
    """Most money, time or rollouts, such as 5usd, 2h or 1000rollouts; several with commas."""
    hour_price: float | None = Field(default=None, gt=0)
    """Dollars for an hour of this machine; a budget of money needs it for a model that is sampled here."""
    minibatch: int = Field(default=4, ge=1)
    """Training tasks that a proposal is made from and tried on."""
    validation: int = Field(default=24, ge=2)
    """Most training tasks on which each accepted prompt is scored."""
    patience: int = Field(default=12, ge=1)
    """Iterations in a row without an accepted proposal after which the search ends."""
    eval_group: int = Field(default=5, ge=1)
    """Runs of each held-out task, with the head and with the best prompt."""
    min_gain: float = Field(default=0.0, ge=0)
    """Gain of mean held-out reward to exceed."""
    shuffle_rewards: bool = False
    """Null run: rewards change places among the runs and the prompts of a task, and the graders' texts are left out. Nothing is to
    be learned."""
    temperature: float = Field(default=1.0, ge=0)
    """Sampling temperature of the model."""
    max_turns: int = Field(default=10, ge=1)
    """Maximum model calls of a run."""
    max_tokens: int = Field(default=256, ge=1)
    """Maximum tokens of a turn."""
    runtime: str = "local"
    """`local` (in this process), `fork`, `subprocess` or `tcp://host:port`."""
    max_concurrent: int = Field(default=64, ge=1)
    """Concurrent rollouts."""
    rollout_timeout: float = Field(default=600.0, gt=0)
    """Seconds."""
    seed: int = 0
    """Seed of every random choice."""

    @property
    def playing(self) -> TrainConfig:
        """The settings of rollouts."""
        names = ("model", "max_turns", "max_tokens", "runtime", "max_concurrent", "rollout_timeout")
        shared = {name: getattr(self, name) for name in (*names, "seed", "eval_group")}
        return TrainConfig(
            **shared, temperature=self.temperature, eval_temperature=self.temperature
        )

    def fingerprint(self, *data: str) -> str:
        """Return a digest, equal for configurations of the same search on the same data."""
        content = self.model_dump_json(exclude=set(_NOT_THE_SEARCH)) + "\n".join(data)
        return hashlib.sha256(content.encode()).hexdigest()[:16]


def make_search_config(values: dict[str, Any]) -> PromptSearchConfig:
    """Return a validated configuration; raises `UsageError` with the first error."""
    try:
        return PromptSearchConfig(**values)
    except ValidationError as error:
        problem = error.errors()[0]
        name = "".join(f"{part}: " for part in problem["loc"])
        raise UsageError(f"The prompt search: {name}{problem['msg']}.") from None
