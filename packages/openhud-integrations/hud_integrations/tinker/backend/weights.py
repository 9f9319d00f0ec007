"""`TinkerWeights`: the weights of one model on a Tinker service, where a policy of this process has a decoder."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from hud.engine.config import DecoderConfig
from hud.errors import StoreError
from hud_integrations.tinker.backend.connection import WAIT_SECONDS, LostClient, TinkerService

PATHS = "tinker.json"
"""File of a checkpoint that holds its `SavedPaths`."""

T = TypeVar("T")


@dataclass(frozen=True)
class SavedPaths:
    """Addresses of saved weights on the service, as `tinker://` paths."""

    state: str
    """Weights with optimizer state, to train on."""
    sampler: str
    """Weights to sample from."""

    @classmethod
    def read(cls, folder: Path) -> SavedPaths:
        """Read the paths of a checkpoint's folder. Raises `StoreError`."""
        try:
            return cls(**json.loads((folder / PATHS).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise StoreError(f"{folder / PATHS} cannot be read: {error}.") from error

    def write(self, folder: Path) -> None:
        """Write the paths into a checkpoint's folder."""
        (folder / PATHS).write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")


class TinkerWeights:
    """The weights of one model. The training client is opened at the first use, from the place set by `go_to`."""

    def __init__(
        self,
        service: TinkerService,
        base_model: str,
        config: DecoderConfig,
        *,
        rank: int,
        seed: int,
    ) -> None:
        """`config`: shape of the base model; its adapters have `rank` and begin with `seed`."""
        self.service, self.base_model, self.config = service, base_model, config
        self._rank, self._seed = rank, seed
        self._from: SavedPaths | None = None
        self._client: Any = None

    def go_to(self, saved: SavedPaths | None) -> None:
        """Continue from saved weights and their optimizer state; None: from the base model."""
        self._from, self._client = saved, None

    def train(self, work: Callable[[Any], T]) -> T:
        """Return `work(training_client)`. Blocks.

        A client that the service has lost is opened again, from its last save, by the next call.
        """
        if self._client is None:
            self._client = self._opened()
        try:
            with self.service.errors():
                return work(self._client)
        except LostClient:
            self._client = None
            raise

    def save(self, name: str) -> SavedPaths:
        """Save the weights on the service. Blocks."""

        def save(client: Any) -> SavedPaths:
            state = client.save_state(name)
            sampler = client.save_weights_for_sampler(name)
            return SavedPaths(state.result(WAIT_SECONDS).path, sampler.result(WAIT_SECONDS).path)

        self._from = self.train(save)
        return self._from

    def sampling_client(self, saved: SavedPaths | None) -> Any:
        """Return a sampling client of saved weights; None: of the base model. Blocks."""
        if saved is None:
            return self.service.sampling_client(base_model=self.base_model)
        return self.service.sampling_client(path=saved.sampler)

    def present_sampling_client(self) -> Any:
        """Return a sampling client of the weights in training, saved or not. Blocks."""
        return self.train(
            lambda client: client.save_weights_and_get_sampling_client().result(WAIT_SECONDS)
        )

    def _opened(self) -> Any:
        if self._from is None:
            return self.service.new_training_client(self.base_model, self._rank, self._seed)
        return self.service.loaded_training_client(self._from.state)
