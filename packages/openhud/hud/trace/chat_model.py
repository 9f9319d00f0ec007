"""`ChatModel`: the interface through which agents call a model, local or remote.

A model is the engine in this process or a server with a provider's dialect. Works on conversations and tokens; independent
of weights and HTTP.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from hud.trace.content import ToolCall, ToolSpec
from hud.trace.steps import Citation, Sample, Usage

ChatMessage = dict[str, Any]
"""A chat-completions message: `role` (system, user, assistant, tool), `content` (text, a list of parts, or
None), on assistant turns `tool_calls` (`[{id, type: "function", function: {name, arguments: str}}]`) and
`reasoning_content`, on tool turns `tool_call_id` and, where the tool failed, `is_error`. `verbatim` on an
assistant turn is `Completion.verbatim`; `wire_messages` omits OpenHUD's own keys."""

_OURS = ("verbatim", "is_error")


ReasoningEffort = Literal["none", "low", "medium", "high"]
"""Amount of reasoning before an answer: a variable of chat templates of reasoning models."""


LEAST_TEMPERATURE = 1e-5
"""Below it a turn is greedy: logits divided by less would overflow in float32."""
LARGEST_TOP_K = (1 << 31) - 1


@dataclass(frozen=True)
class SamplingParams:
    """Sampling parameters. None: not sent; the server's default applies.

    A local model samples from the policy's unmodified distribution, as training requires, up to the end of its context.
    """

    max_tokens: int | None = None
    """Most tokens to sample in one turn."""
    temperature: float | None = None
    """0 means greedy; logprobs are then those of temperature 1."""
    top_p: float | None = None
    top_k: int | None = None
    """0 means no cut."""
    stop: tuple[str, ...] = ()
    seed: int | None = None
    """With a seed, the same prompt and weights sample the same tokens."""
    reasoning_effort: str | None = None
    """A `ReasoningEffort` for local models (passed to the chat template); a provider may accept other values. None: its
    default."""

    def most_tokens(self, room: int = 1 << 30) -> int:
        """Return the most tokens of a turn for which there is `room`."""
        return room if self.max_tokens is None else min(self.max_tokens, room)

    @property
    def effective_temperature(self) -> float:
        """Temperature of a local model; default 1, and 0 below `LEAST_TEMPERATURE`."""
        if self.temperature is None:
            return 1.0
        return self.temperature if self.temperature >= LEAST_TEMPERATURE else 0.0

    @property
    def effective_top_k(self) -> int:
        """Number of likeliest tokens that a local model samples from, as int32; 0: all."""
        return min(self.top_k or 0, LARGEST_TOP_K)

    @property
    def effective_top_p(self) -> float:
        """Nucleus (top-p) of a local model; default 1."""
        return 1.0 if self.top_p is None else self.top_p

    @property
    def truncates(self) -> bool:
        """True when the distribution is cut, so that logprobs cannot be trained on."""
        return self.effective_top_p < 1.0 or bool(self.top_k)


@dataclass(frozen=True)
class Continuation:
    """The exact token prefix of a conversation's next turn.

    `token_ids` is the last turn's prompt plus its output; `covered` is how many leading messages, system
    messages not counted, those ids already stand for. Only what follows is rendered and appended.
    """

    token_ids: list[int]
    covered: int


@dataclass
class Completion:
    """One turn of a model."""

    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] = field(default_factory=list)
    finish_reason: str = "stop"
    """`stop`, `tool_calls`, `length` (of the turn), `context_full` (of the window), `refusal`, or
    `malformed_tool_call` when a call could not be parsed."""
    refusal: str | None = None
    model: str | None = None
    usage: Usage = field(default_factory=Usage)
    sample: Sample | None = None
    """Token ids and logprobs, where the model gives them."""
    citations: list[Citation] = field(default_factory=list)
    verbatim: dict[str, Any] | None = None
    """The turn in its provider's format, `{"dialect": ..., "items": [...]}`, repeated verbatim in later requests:
    signatures and encrypted reasoning cannot be reconstructed."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Further entries of the step's `extra`, such as acknowledged safety checks."""
    extended: bool = True
    """False when the chat format could not extend the requested prefix: the whole conversation was rendered again and the
    trajectory splits here."""


def begins_turn(messages: list[ChatMessage]) -> bool:
    """Return True if the last message is the beginning of the assistant's turn, which the model continues."""
    return bool(messages) and messages[-1]["role"] == "assistant"


def with_system_prompt(messages: list[ChatMessage], prompt: str | None) -> list[ChatMessage]:
    """Return a conversation under a model's own system prompt.

    The prompt precedes the caller's own leading system message, if there is one, with an empty line between them.
    """
    if not prompt:
        return messages
    if not messages or messages[0]["role"] != "system":
        return [{"role": "system", "content": prompt}, *messages]
    first, *others = messages
    content = first["content"]
    if isinstance(content, list):
        content = [{"type": "text", "text": f"{prompt}\n\n"}, *content]
    else:
        content = f"{prompt}\n\n{content}" if content else prompt
    return [{**first, "content": content}, *others]


def wire_messages(messages: list[ChatMessage]) -> list[ChatMessage]:
    """Return messages in chat-completions format, without OpenHUD's own keys."""
    return [
        {name: value for name, value in message.items() if name not in _OURS}
        if any(name in message for name in _OURS)
        else message
        for message in messages
    ]


class ChatModel(Protocol):
    """A model that completes conversations."""

    name: str

    async def complete(
        self,
        messages: list[ChatMessage],
        tools: list[ToolSpec],
        params: SamplingParams,
        *,
        continuation: Continuation | None = None,
        trace_id: str | None = None,
    ) -> Completion:
        """Return the model's next turn. Cancelling the call frees its resources.

        Raises `UsageError` for a permanently invalid request (too long, images without vision) and `InfrastructureFault`
        for a transient failure.
        """
        ...

    async def aclose(self) -> None:
        """Close the connections of the model, if any. A later call opens them again."""
        return
