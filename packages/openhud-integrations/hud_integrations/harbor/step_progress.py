"""`StepProgress`: how far a run has come in a task of several steps, and what they were worth."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from hud.errors import RolloutError
from hud_integrations.harbor.task_folder import StepFolder, TaskFolder


@dataclass
class StepProgress:
    """The steps of one run that were verified, and the step that it is at."""

    folder: TaskFolder
    rewards: list[dict[str, float]] = field(default_factory=list)
    """Rewards of the verified steps, by name."""
    over: bool = False
    """True once no step is left, or one earned less than its `min_reward`."""
    fault: RolloutError | None = None
    """Failure of a step's tests during the run."""
    moving: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def step(self) -> StepFolder | None:
        """The current step; None after the last."""
        return None if self.over else self.folder.steps[len(self.rewards)]

    def verified(self, step: StepFolder, rewards: dict[str, float]) -> None:
        """Record the rewards of the current step, and go on to the next."""
        self.rewards.append(rewards)
        low = any(_named(rewards, name) < least for name, least in step.least.items())
        self.over = low or len(self.rewards) == len(self.folder.steps)

    def reward(self) -> float:
        """Return the reward of the task: the mean of the verified steps, or the last step's, 0 where it was not reached."""
        earned = [reward_of(rewards) for rewards in self.rewards]
        if self.folder.config.get("multi_step_reward_strategy") == "final":
            return earned[-1] if len(earned) == len(self.folder.steps) else 0.0
        return sum(earned) / len(earned)


def reward_of(rewards: Mapping[str, float]) -> float:
    """Return the value named `reward`, else the mean of all."""
    return rewards["reward"] if "reward" in rewards else sum(rewards.values()) / len(rewards)


def _named(rewards: Mapping[str, float], name: str) -> float:
    return reward_of(rewards) if name == "reward" else rewards.get(name, 0.0)
