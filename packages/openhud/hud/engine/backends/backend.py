"""Port of training backends: a service that holds the weights of models, samples and trains them.

Environments, rollouts, records and the checkpoint tree stay with the platform. A package registers a `Backend` by an entry point of
the group `hud.trainers`; `TrainConfig.backend` is that entry point's name. Importing it must not import torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hud.engine.policy import Policy
    from hud.engine.trainer import Trainer
    from hud.learning.datums import Datum

Secret = Callable[[str], str | None]
"""Returns a key of the model's team by the name of its variable (`hud set NAME=...`); None where it is not set."""


@dataclass(frozen=True)
class OfferedModel:
    """A base model of a backend."""

    name: str
    """Name at the backend."""
    tokenizer: str
    """Folder of this machine or hub id that has its tokenizer, chat template and config.json."""
    lora_rank: int | None
    """Rank of the adapters that are trained; None: all weights are."""


@dataclass(frozen=True)
class BackendModel:
    """A registered model, as its backend opens it."""

    settings: Mapping[str, Any]
    folder: Path
    """Tokenizer, chat template and config.json."""
    lora_rank: int
    seed: int
    """Seed of an adapter's initial weights."""
    tool_call_parser: str | None
    secret: Secret
    saved: Callable[[str | None], Path | None]
    """Returns the folder that `Trainer.save_policy` wrote for a checkpoint's id; None for the base model, and for weights that no
    checkpoint holds yet. Raises `ConflictError` for a pruned one."""


class OpenModel(ABC):
    """A policy of this process whose weights are at the backend."""

    policy: Policy
    """Samples by a `TurnSampler` of the backend's; whoever opened it sets its `checkpoint`."""

    @abstractmethod
    def go_to(self, saved: Path | None) -> None:
        """Continue from saved weights and their optimizer state; None: from the base model. Blocks."""

    @abstractmethod
    def open_trainer(self) -> Trainer:
        """Return a trainer of these weights."""

    @abstractmethod
    def score(self, datums: Sequence[Datum], top: int) -> list[Datum]:
        """Return the datums with the logprobs of their sampled tokens, and the `top` likeliest, as their reference: the model as a teacher.

        Blocks. Raises `UsageError` for datums that it cannot score (`hud.engine.learn.scoring`).
        """


class Connection(ABC):
    """The backend's part in one process that samples and trains."""

    @abstractmethod
    def open(self, model: BackendModel) -> OpenModel:
        """Return a model at its base weights. Blocks. Raises `UsageError` for a missing package, key or setting."""

    @abstractmethod
    def close(self) -> None:
        """Free what is open. Models are closed before."""


class Backend(ABC):
    """A registered training service. It holds no weights and no connection; `connect` makes one."""

    @abstractmethod
    def settings(self, base_model: str, environment: Mapping[str, str]) -> dict[str, Any]:
        """Return the settings of a new model on a base model, from the client's environment variables. They are stored as JSON."""

    @abstractmethod
    def refusal(self, config: Any) -> str | None:
        """Return what of a `hud.train.TrainConfig` the backend cannot follow, as `temperature other than 1`; None: it follows all."""

    @abstractmethod
    def offered(self, settings: Mapping[str, Any], secret: Secret) -> OfferedModel:
        """Return the base model of a new model's settings. Blocks.

        Raises `NotFoundError` for an unknown one, and `UsageError` for a missing package or key, or settings that are none of its.
        """

    @abstractmethod
    def connect(self) -> Connection:
        """Return a connection, which opens nothing before its first model."""
