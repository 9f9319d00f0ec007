"""Port of sampling servers: servers that sample a policy whose weights are trained in this process.

A package registers a `SamplingServers` by an entry point of the group `hud.samplers`. Its name is the `kind` of a model's servers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hud.engine.decoder import Decoder
from hud.engine.lora import LoraConfig
from hud.engine.policy import TurnSampler
from hud.outbound import Reach


@dataclass(frozen=True)
class TrainedModel:
    """Training of a model that servers are to sample."""

    slug: str
    adapter: bool
    """True: by LoRA; False: all weights."""
    router_replay: bool
    """Trained with the experts by which tokens were sampled."""


@dataclass(frozen=True)
class ServedPolicy:
    """A policy that servers sample, with their addresses."""

    decoder: Decoder
    """Has the weights, which training changes in place."""
    lora: LoraConfig | None
    """None: all weights are trained."""
    name: str
    """Prefix of its weights' names on the servers, which other platforms may use as well."""
    published: Path
    """Folder for weights that servers load before a checkpoint is saved."""
    saved: Callable[[str | None], Path | None]
    """Returns the folder that has the weights of a version already, an adapter's with `lora`; None: they are not on disk."""
    urls: tuple[str, ...]
    settings: Mapping[str, Any]
    """Settings of this kind of servers, as `SamplingServers.check` returned them."""
    key: str | None
    """The servers' key; None: they ask for none."""
    reach: Reach
    """Allowed addresses."""


class ServerSampler(TurnSampler):
    """Samples turns on servers. Setting `version` loads the decoder's weights there; before, no server is contacted."""

    @abstractmethod
    def change_servers(self, urls: tuple[str, ...]) -> None:
        """Replace the servers, while they sample or before they do. Blocks."""


class SamplingServers(ABC):
    """A registered kind of servers."""

    @abstractmethod
    def check(self, settings: Mapping[str, Any], model: TrainedModel) -> dict[str, Any]:
        """Return the settings with defaults. Raises `UsageError` for wrong ones, and for training that these servers do not support."""

    @abstractmethod
    def sampler(self, policy: ServedPolicy) -> ServerSampler:
        """Return a sampler of a policy's turns, which has contacted no server yet."""
