"""One sequence on its way through a sampler, and what became of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from hud.engine.chat.grammars import Constraint
from hud.engine.sample.adapter_bank import Adapter
from hud.engine.sample.slots import Slot
from hud.engine.sample.token_sampling import Uniforms
from hud.errors import InfrastructureFault
from hud.trace import SamplingParams


class SamplerClosed(InfrastructureFault):
    """The sampler draws no more: its policy made room for another."""


class Fork(Protocol):
    """One of several policies with the same base."""

    adapter: Adapter | None
    """What its turns that begin now are drawn with; None: the base."""


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


@dataclass(eq=False, kw_only=True)
class Asked:
    """One turn that somebody wants drawn."""

    prompt: list[int]
    params: SamplingParams
    stop_ids: frozenset[int]
    stopped: Callable[[list[int]], bool] | None = None
    """Asked after each token, for stops that are text."""
    followed: bool = False
    tenant: str = ""
    top: int = 0
    """How many likeliest tokens to keep beside each."""
    constraint: Constraint | None = None
    fork: Fork | None = None
    """Whose adapter draws it, where several forks share a sampler."""


@dataclass(eq=False, kw_only=True)
class Request(Asked):
    """One sequence on its way. What is drawn grows at the end of its lists."""

    uniforms: Uniforms
    most: int
    listener: Callable[[], None]
    """Called from the sampler's thread when it ended and, where it is `followed`, after every token."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    likeliest: list[list[tuple[int, float]]] = field(default_factory=list)
    outcome: Drawn | InfrastructureFault | None = None
    """None while it is on its way."""
    adapter: Adapter | None = None
    """The version of the fork's adapter that draws it, once it is admitted."""
    slot: Slot | None = None
    """None before it is admitted, and while it is preempted."""
    cached: int = 0
    preempted: int = 0
    """How many times its slot was taken from it."""
    version: str | None = None
    """The weights that drew its first token, or would."""
    swaps: list[tuple[int, str | None]] = field(default_factory=list)
    """Weights that took over on its way; see `Drawn.swaps`."""
    abandoned: bool = False
    """True when whoever asked wants no more."""

    def end(self, reason: str) -> None:
        """Say that it is over, and why; nobody is told yet."""
        self.outcome = Drawn(
            self.token_ids,
            self.logprobs,
            reason,
            self.cached,
            self.version,
            # One that came after the last token drew nothing.
            [swap for swap in self.swaps if swap[0] < len(self.token_ids)],
        )

    def abandon(self) -> None:
        """Want no more of it: its slot is free as soon as the sampler looks up."""
        self.abandoned = True

    def swap(self, version: str | None) -> None:
        """Write down that other weights draw from here on."""
        place = len(self.token_ids)
        if not place:
            self.version = version
            return
        if self.swaps and self.swaps[-1][0] == place:
            self.swaps.pop()
        self.swaps.append((place, version))

    @property
    def plain(self) -> bool:
        """True where nobody looks at logits, or cuts them, before a token is drawn."""
        return not (self.constraint is not None or self.top or self.params.truncates)

    @property
    def watched(self) -> bool:
        """True where somebody has to see each token before the next one is drawn."""
        return self.followed or self.stopped is not None

    @property
    def place(self) -> Slot:
        """The slot of a sequence that has one."""
        assert self.slot is not None
        return self.slot

    @property
    def ids(self) -> list[int]:
        """The prompt, and what was drawn after it."""
        return self.prompt + self.token_ids if self.token_ids else self.prompt

    @property
    def last(self) -> int:
        """The last of the `ids`."""
        return self.token_ids[-1] if self.token_ids else self.prompt[-1]

    @property
    def missing(self) -> int:
        """How many of the `ids` the cache has not got yet; with the last of them, the next token can be drawn."""
        assert self.slot is not None
        return len(self.prompt) + len(self.token_ids) - len(self.slot.tokens)


async def wait_for_turn(submit: Callable[[Callable[[], None]], Request]) -> Drawn:
    """Submit a turn and return it once it is drawn. Cancelling the call gives it up."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Drawn] = loop.create_future()

    def settle() -> None:
        if future.done():
            return
        if isinstance(request.outcome, Drawn):
            future.set_result(request.outcome)
        elif request.outcome is not None:
            future.set_exception(request.outcome)

    def listener() -> None:
        with suppress(RuntimeError):  # A loop that is closed has nobody waiting on it.
            loop.call_soon_threadsafe(settle)

    request = submit(listener)
    try:
        return await future
    finally:
        request.abandon()
