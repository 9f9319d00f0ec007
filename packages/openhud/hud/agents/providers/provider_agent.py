"""`ProviderAgent`: the tool loop over a provider's model and dialect."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Generic, TypeVar

from hud.agents.tool_loop import ToolLoopAgent
from hud.agents.types import ProviderConfig
from hud.inference.dialects.codec import ClientCodec
from hud.inference.endpoints import Home, endpoint
from hud.inference.served_model import ServedModel
from hud.trace import SamplingParams

C = TypeVar("C", bound=ProviderConfig)


class ProviderAgent(ToolLoopAgent, Generic[C]):
    """Agent with a provider's model.

    Connections are reused between runs; `aclose()` closes them.
    """

    settings: ClassVar[type[ProviderConfig]]
    home: ClassVar[Home]

    def __init__(self, config: C | None = None, **fields: Any) -> None:
        if config is None:
            made: Any = self.settings(**fields)
        elif fields:
            made = type(config)(**{**config.model_dump(exclude_unset=True), **fields})
        else:
            made = config
        where = endpoint(self.home, made.model, made.base_url, made.api_key, gateway=made.gateway)
        model = ServedModel(
            made.model,
            where,
            self.codec(made),
            stream=made.stream,
            timeout_seconds=made.request_timeout_seconds,
        )
        super().__init__(model, made, self.sampling(made))

    @abstractmethod
    def codec(self, config: C) -> ClientCodec:
        """Return the dialect of the model's API."""

    @abstractmethod
    def sampling(self, config: C) -> SamplingParams:
        """Return the sampling parameters of each turn."""
