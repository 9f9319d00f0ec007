"""`GenerationRequest`: a request for turns of a model, independent of dialects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from hud.trace import ChatMessage, Continuation, ReasoningEffort, SamplingParams, ToolSpec, new_id


@dataclass(frozen=True)
class ToolChoice:
    """Tool calls: `auto` by the model's decision, `none` never, `required` at least one call."""

    mode: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] = ()
    """With `required`: only these tools; empty: any."""


@dataclass(frozen=True)
class OutputFormat:
    """A JSON response, any object or an object by a schema, or one of several plain texts."""

    schema: dict[str, Any] | None = None
    name: str = "answer"
    """Its name at the provider; with `words`, that of the client's request."""
    words: tuple[str, ...] = ()
    """Plain texts in place of JSON: the response is one of them."""


@dataclass(frozen=True)
class GenerationRequest:
    """One request for one or more turns of a model."""

    model: str
    """The model's name in the client's request."""
    messages: list[ChatMessage] = field(default_factory=list)
    tools: list[ToolSpec] = field(default_factory=list)
    sampling: SamplingParams = field(default_factory=SamplingParams)
    """`reasoning_effort`: rejected for a local model whose chat template has no effort."""
    choices: int = 1
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    parallel_calls: bool = True
    """False: at most one tool call in a turn."""
    format: OutputFormat | None = None
    top_logprobs: int | None = None
    """Alternatives listed with each token's own logprob. None: no logprobs."""
    return_token_ids: bool = False
    continuation: Continuation | None = None
    checkpoint: str | None = None
    system_prompt: str | None = None
    """Prompt in place of the model's own; empty: none. None: the model's own."""
    prompts: Sequence[str | list[int]] | None = None
    """Text or token ids to continue without a chat format; `messages` is then empty."""
    stream: bool = False
    think: bool | None = None
    """False: the response omits reasoning. None: not set by the client."""
    response_id: str = field(default_factory=new_id, compare=False)
    """Id of the response, without the dialect's prefix."""
    budgeted_effort: ReasoningEffort | None = None
    """Effort equivalent to a thinking switch or token budget, which clients send by default: used by local models whose
    chat template has an effort, ignored by others."""

    def params(self, choice: int) -> SamplingParams:
        """Return the sampling parameters of one of several choices; each has its own seed."""
        seed = self.sampling.seed
        return self.sampling if seed is None else replace(self.sampling, seed=seed + choice)

    @property
    def cut(self) -> bool:
        """True if the sampled distribution differs from the policy's: by a grammar, top-p or top-k."""
        bound = self.format is not None or self.tool_choice.mode == "required"
        return bound or self.sampling.truncates

    @property
    def offered(self) -> list[ToolSpec]:
        """The tools that the model may call."""
        return [] if self.tool_choice.mode == "none" else self.tools
