"""A turn to sample, its state while it is sampled, and the result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from hud.engine.chat.grammars import Constraint
from hud.engine.sample.adapter_bank import Adapter
from hud.engine.sample.prefix_cache import Slot
from hud.engine.sample.token_sampling import Uniforms
from hud.errors import ContextOverflow, InfrastructureFault, UsageError
from hud.trace import SamplingParams
from hud.trace.sampled.pictures import Picture


class Fork(Protocol):
    """A policy with an adapter of its own over weights that several share."""

    adapter: Adapter | None
    """The adapter of turns that begin now."""


class SamplerClosed(InfrastructureFault):
    """The sampler takes no more turns: its policy was unloaded."""


@dataclass(frozen=True)
class SampledTurn:
    """A sampled turn."""

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str
    """`stop` (an end-of-turn token or a stop string) or `length`."""
    cached_tokens: int
    """Prompt tokens that were found in the cache."""
    version: str | None
    """The checkpoint whose weights sampled it, up to the first swap."""
    swaps: list[tuple[int, str | None]] = field(default_factory=list)
    """`(place, checkpoint)`: weights that were swapped in meanwhile, and the first token that they sampled."""


@dataclass(eq=False, kw_only=True)
class Turn:
    """One turn to sample."""

    prompt: list[int]
    pictures: tuple[Picture, ...] = ()
    """Pictures of the prompt, in order."""
    params: SamplingParams
    stop_ids: frozenset[int]
    stopped: Callable[[list[int]], bool] | None = None
    """Called with all sampled ids after each token; True ends the turn. For stops that are text."""
    followed: bool = False
    """True: the listener is called after every token."""
    tenant: str = ""
    top: int = 0
    """Number of likeliest tokens to keep for each sampled one."""
    constraint: Constraint | None = None
    fork: Fork | None = None
    """The policy whose adapter samples it, where several share a sampler over the same base weights."""


@dataclass(eq=False, kw_only=True)
class Request(Turn):
    """A turn in a sampler; sampled tokens are appended to its lists."""

    uniforms: Uniforms
    most: int
    """Most tokens to sample."""
    listener: Callable[[], None]
    """Called from the sampler's thread at the end and, where the turn is `followed`, after every token."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    likeliest: list[list[tuple[int, float]]] = field(default_factory=list)
    outcome: SampledTurn | InfrastructureFault | None = None
    """None until it ends."""
    adapter: Adapter | None = None
    """The version of the fork's adapter that samples it, set on admission."""
    slot: Slot | None = None
    """None before admission, and while preempted."""
    cached: int = 0
    preempted: int = 0
    """Number of preemptions."""
    version: str | None = None
    """The weights of its first token."""
    swaps: list[tuple[int, str | None]] = field(default_factory=list)
    """See `SampledTurn.swaps`."""
    abandoned: bool = False
    """True once the caller has cancelled it."""
    cancel: Callable[[], None] | None = None
    """Cancels it in the process, or on the server, that samples it; None for a thread of this process."""

    def end(self, reason: str) -> None:
        """Set the outcome, without calling the listener."""
        self.outcome = SampledTurn(
            self.token_ids,
            self.logprobs,
            reason,
            self.cached,
            self.version,
            # A swap after the last token sampled nothing.
            [swap for swap in self.swaps if swap[0] < len(self.token_ids)],
        )

    def abandon(self) -> None:
        """Cancel: its slot is freed before the sampler's next step."""
        self.abandoned = True
        if self.cancel is not None and self.outcome is None:
            self.cancel()

    def swap(self, version: str | None) -> None:
        """Record that other weights sample from here on."""
        place = len(self.token_ids)
        if not place:
            self.version = version
            return
        if self.swaps and self.swaps[-1][0] == place:
            self.swaps.pop()
        self.swaps.append((place, version))

    @property
    def shown(self) -> int:
        """Number of tokens that a reader gets now: all after the end, before it those of a `followed` turn."""
        # The thread appends ids, then logprobs: the shorter list is complete.
        return len(self.logprobs) if self.followed or self.outcome is not None else 0

    @property
    def place(self) -> Slot:
        """The slot of an admitted request."""
        assert self.slot is not None
        return self.slot

    @property
    def ids(self) -> list[int]:
        """The prompt and the sampled tokens."""
        return self.prompt + self.token_ids if self.token_ids else self.prompt

    @property
    def last_id(self) -> int:
        """The last of the `ids`."""
        return (self.token_ids or self.prompt)[-1]

    @property
    def missing(self) -> int:
        """Number of `ids` that are not in the cache; a token is sampled when it becomes 0."""
        return len(self.prompt) + len(self.token_ids) - len(self.place.tokens)

    def next_ids(self, count: int) -> list[int]:
        """Return the first `count` of the `ids` that are not in the cache."""
        start = len(self.place.tokens) - len(self.prompt)
        if start >= 0:
            return self.token_ids[start : start + count]
        return self.ids[len(self.place.tokens) :][:count]


def room_after(prompt: list[int], vocab_size: int, context: int, limit: str) -> int:
    """Return how many tokens may follow a prompt in a context of so many.

    Raises `ContextOverflow` for a prompt that leaves no room, naming the `limit`; `UsageError` for an empty one, or one with
    ids outside the vocabulary, which would fail the whole batch.
    """
    if not prompt:
        raise UsageError("The prompt is empty.")
    if min(prompt) < 0 or max(prompt) >= vocab_size:
        wrong = next(token for token in prompt if not 0 <= token < vocab_size)
        raise UsageError(
            f"The prompt holds the token id {wrong}; the model knows {vocab_size} tokens."
        )
    if len(prompt) >= context:
        raise ContextOverflow(f"The prompt has {len(prompt)} tokens; {limit} holds {context}.")
    return context - len(prompt)


async def wait_for_turn(submit: Callable[[Callable[[], None]], Request]) -> SampledTurn:
    """Submit a turn and return it once it is sampled. Cancelling the call abandons it."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[SampledTurn] = loop.create_future()

    def settle() -> None:
        if future.done():
            return
        if isinstance(request.outcome, SampledTurn):
            future.set_result(request.outcome)
        elif request.outcome is not None:
            future.set_exception(request.outcome)

    def listener() -> None:
        with suppress(RuntimeError):  # The loop may be closed by then.
            loop.call_soon_threadsafe(settle)

    request = submit(listener)
    try:
        return await future
    finally:
        request.abandon()
