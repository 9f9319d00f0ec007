"""What a client asks for, whatever dialect it said it in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hud.trace import ChatMessage, Continuation, ReasoningEffort, SamplingParams, ToolSpec


@dataclass(frozen=True)
class Sampling:
    """How to draw; None: as the model's server does by itself."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None

    def params(self, choice: int) -> SamplingParams:
        """Return the engine's parameters for one of several choices; each draws from a seed of its own."""
        return SamplingParams(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            stop=self.stop,
            seed=None if self.seed is None else self.seed + choice,
        )


@dataclass(frozen=True)
class ToolChoice:
    """Whether tools are called: when the model likes, never, in any case, or one of `names` in any case."""

    mode: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] = ()
    """With `required`: only these; empty: any."""


@dataclass(frozen=True)
class OutputFormat:
    """JSON is asked for: any object, or what a schema describes."""

    schema: dict[str, Any] | None = None
    name: str = "answer"


@dataclass(frozen=True)
class GenerationRequest:
    """One request for one or more turns of a model."""

    model: str
    """As the client named it."""
    messages: list[ChatMessage] = field(default_factory=list)
    tools: list[ToolSpec] = field(default_factory=list)
    sampling: Sampling = field(default_factory=Sampling)
    choices: int = 1
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    parallel_calls: bool = True
    """False: at most one tool call in a turn."""
    format: OutputFormat | None = None
    top_logprobs: int | None = None
    """None: no logprobs; else how many alternatives beside each token's own."""
    return_token_ids: bool = False
    continuation: Continuation | None = None
    checkpoint: str | None = None
    prompts: Sequence[str | list[int]] | None = None
    """Text to go on from, without any chat format; then there are no messages."""
    stream: bool = False
    think: bool | None = None
    """False: reasoning is not wanted in the answer; None: the client did not say."""
    effort: ReasoningEffort | None = None
    """How hard the model shall think. A model of this server that cannot be told refuses."""
    budgeted_effort: ReasoningEffort | None = None
    """What switches and token budgets of thinking come to, which clients send by themselves: for models of this server
    that can be told, not used by others."""

    @property
    def cut(self) -> bool:
        """True where not everything that the model could say may be drawn."""
        bound = self.format is not None or self.tool_choice.mode == "required"
        return bound or self.sampling.params(0).truncates

    @property
    def offered(self) -> list[ToolSpec]:
        """The tools that the model may call."""
        return [] if self.tool_choice.mode == "none" else self.tools
