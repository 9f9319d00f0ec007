"""One sequence on its way through a sampler, and what became of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hud.engine.constraints import Constraint
from hud.engine.drawing import Uniforms
from hud.engine.slots import Slot
from hud.errors import InfrastructureFault
from hud.trace import SamplingParams


class SamplerClosed(InfrastructureFault):
    """The sampler draws no more: its policy made room for another."""


@dataclass(frozen=True)
class Drawn:
    """What a request drew."""

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str
    """`stop` (an end-of-turn token or a stop string) or `length`."""
    cached_tokens: int
    """Prompt tokens that were not computed, because a slot held them."""
    version: str | None
    """The checkpoint whose weights drew it, up to the first swap."""
    swaps: list[tuple[int, str | None]] = field(default_factory=list)
    """`(place, checkpoint)`: weights that were swapped on the way, and the first token that they drew."""


@dataclass(eq=False)
class Request:
    """One sequence on its way. What is drawn grows at the end of its lists, token for token."""

    prompt: list[int]
    params: SamplingParams
    stop_ids: frozenset[int]
    stopped: Callable[[list[int]], bool] | None
    uniforms: Uniforms
    most: int
    listener: Callable[[], None]
    """Called from the sampler's thread when it ended and, where it is `followed`, after every token."""
    followed: bool = False
    tenant: str = ""
    top: int = 0
    """How many likeliest tokens to keep beside each."""
    constraint: Constraint | None = None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    likeliest: list[list[tuple[int, float]]] = field(default_factory=list)
    outcome: Drawn | InfrastructureFault | None = None
    """None while it is on its way."""
    slot: Slot | None = None
    cached: int = 0
    version: str | None = None
    """The weights that began it."""
    swaps: list[tuple[int, str | None]] = field(default_factory=list)
    """Weights that took over on its way; see `Drawn.swaps`."""
    abandoned: bool = False
    """Set by whoever asked, when he wants no more: its slot is free before the next step."""

    def swap(self, version: str | None) -> None:
        """Write down that other weights draw from here on."""
        place = len(self.token_ids)
        if self.swaps and self.swaps[-1][0] == place:
            self.swaps.pop()
        self.swaps.append((place, version))

    @property
    def place(self) -> Slot:
        """The slot of a sequence that was admitted."""
        assert self.slot is not None
        return self.slot
