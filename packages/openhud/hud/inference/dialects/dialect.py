"""Port of dialects: an API for models, which the gateway serves, and in which it calls providers.

A package registers a `Dialect` by an entry point of the group `hud.dialects`. One in which providers are called is a
`ProviderDialect`. The codecs (`codec`) translate bodies; a dialect adds what is outside of bodies, such as paths and headers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple

from hud.inference.dialects.chat_completions.answer import token_counts
from hud.inference.dialects.codec import ClientCodec, ServerCodec, StreamingCodec
from hud.inference.dialects.fields import Fields
from hud.inference.endpoints import Home
from hud.inference.prices import TokenCounts
from hud.trace import ChatMessage

GROUP = "hud.dialects"

Operation = Literal["turn", "count", "forward", "models", "model", "stored", "delete"]
"""Purpose of a request: turns of a model, the number of a prompt's tokens, an endpoint that providers alone have, the list of
models, one of them (path parameter `model`), a stored answer, or its deletion (path parameter `id`)."""


@dataclass(frozen=True)
class RouteCall:
    """Operation of a request, as its path and query say it."""

    operation: Operation
    action: str = ""
    """Action at a provider (see `ClientCodec.url`), and the request's `route` in the ledger."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the path, which are merged into the body."""
    refusal: str = ""
    """`forward`: end of the sentence that refuses it for models of this server."""


@dataclass(frozen=True)
class DialectRoute:
    """A route of the gateway."""

    name: str
    paths: tuple[str, ...]
    """The last one is in the OpenAPI description."""
    description: str
    call: RouteCall | Callable[[Mapping[str, str], bytes], RouteCall]
    """A function takes path parameters and query. Raises `NotFoundError` for a path that is none of the dialect's."""
    method: str = "POST"
    needed: tuple[str, ...] = ()
    """Required fields of the body, in the OpenAPI description."""


class ListedModel(NamedTuple):
    """A model as it is listed."""

    name: str
    display: str
    owner: str
    created: datetime
    context: int | None
    """Context length in tokens; None for a provider's model, of which only the provider knows it."""


@dataclass(frozen=True)
class StatedBounds:
    """Bounds of a request's answers, as its fields state them."""

    tokens: int | None = None
    """Most tokens of an answer; None: the request states no limit."""
    answers: int = 1
    default: int | None = None
    """Tokens of an answer without a limit; None: unknown."""
    settable: bool = True
    """False: no field of the request bounds its answer."""


@dataclass(frozen=True)
class NamedProvider:
    """A provider that is recognized by the prefixes of its models' names."""

    name: str
    home: Home
    prefixes: tuple[str, ...]
    listed: tuple[str, ...]
    """Models shown in the catalogue."""
    agent: str
    """Type of the agent that plays them (`hud.agents.agent_kinds`)."""

    @property
    def key_env(self) -> str:
        """Environment variable or secret of its key."""
        return self.home.key_variables[0]


class Dialect:
    """A dialect that the gateway serves. Attributes without a value are required; the defaults are those of chat completions."""

    family: str
    """Name that dialects of the same providers share; a provider takes requests of its family unchanged."""
    codec: ServerCodec
    routes: tuple[DialectRoute, ...]
    prefixes: tuple[str, ...]
    """Prefixes of its paths, also of those without a route: errors there have the dialect's form."""
    methods: tuple[str, ...] = ()
    """Ends of its paths below `/models/`, such as `:generateContent`."""
    marks: frozenset[bytes] = frozenset()
    """Headers, in lower case, that only its clients send."""
    key_header: bytes | None = None
    """Header of a client's key, in lower case, if not `authorization`."""
    sent_headers: frozenset[bytes] = frozenset()
    """Further request headers, in lower case, that are forwarded to its providers."""
    session_headers: frozenset[bytes] = frozenset({b"x-session-id"})
    """Request headers, in lower case, by which programs name the session or the agent of a call. They are forwarded, too, and recorded
    with the steps of a run."""
    returned_headers: tuple[str, ...] = ()
    """Prefixes of further response headers, in lower case, that are returned from its providers."""
    limits: tuple[str, ...] = ("max_tokens",)
    """Fields with the most tokens of an answer. The first one is set where a request states none."""
    usage_fields: tuple[str, ...] = ("usage",)
    """Fields of answers and events, outside or one level inside, that hold token counts."""
    seals_thoughts: bool = False
    """True: its answers have fields for `ThoughtSealed`."""
    provider: NamedProvider | None = None
    """Provider whose models are known by their names; they are called in the family's `ProviderDialect`."""
    reader: ClientCodec | None = None
    """Codec by which answers of its providers are read for the steps of a run; None: that of a `ProviderDialect`, else none."""

    def is_spoken(self, path: str, headers: Set[bytes]) -> bool:
        """Return True if a request is in this dialect, by its path or the names of its headers."""
        return path.startswith(self.prefixes) or not self.marks.isdisjoint(headers)

    # The gateway's own answers.

    def models(self, models: Sequence[ListedModel]) -> dict[str, Any]:
        """Return the list of models."""
        return {"object": "list", "data": [self.model(model) for model in models]}

    def model(self, model: ListedModel) -> dict[str, Any]:
        """Return a model of the list."""
        # As vLLM and OpenRouter write the length.
        lengths = {"max_model_len": model.context, "context_length": model.context}
        return {
            "id": model.name,
            "object": "model",
            "created": int(model.created.timestamp()),
            "owned_by": model.owner,
            **({} if model.context is None else lengths),
        }

    def counted_request(self, body: Fields) -> Fields:
        """Return the request for a turn whose prompt a `count` is about."""
        return body

    def counted(self, tokens: int) -> dict[str, Any]:
        """Return the number of a prompt's tokens."""
        return {"input_tokens": tokens}

    # Stored answers, which later requests continue; by default none is.

    def continued(self, body: Fields) -> str | None:
        """Return the id of the stored answer that a request continues."""
        del body
        return None

    def stored_turn(self, body: Fields, answer: Mapping[str, Any]) -> list[ChatMessage] | None:
        """Return the messages of an answer, which is stored by its field `id`; None: it is not stored."""
        del body, answer
        return None

    def deleted(self, identifier: str) -> dict[str, Any]:
        """Return the answer to the deletion of a stored answer."""
        return {"id": identifier, "deleted": True}

    # Requests that are passed to a provider of the family.

    def token_counts(self, usage: dict[str, Any]) -> TokenCounts:
        """Return the counts in a provider's answer; the values are checked, any may be missing."""
        return token_counts(usage)

    def stated_bounds(self, action: str, values: Mapping[str, Any]) -> StatedBounds:
        """Return the bounds that a request's fields state; their values are not checked yet."""
        del action
        # The largest: which of several a provider follows is not known here.
        limits = counts_of([values.get(name) for name in self.limits])
        return StatedBounds(max(limits, default=None), max(counts_of([values.get("n")]), default=1))

    def bounded(self, action: str, values: Mapping[str, Any], tokens: int) -> dict[str, Any]:
        """Return a request's fields with a limit in place of those that are none (null, -1)."""
        del action
        others = {name: value for name, value in values.items() if name not in self.limits}
        return {**others, self.limits[0]: tokens}


class ProviderDialect(Dialect):
    """A dialect in which providers are called, also for clients of others. One of each family."""

    client: StreamingCodec
    base_path: str = ""
    """Path that a provider's registered URL may end with: the codec adds it to a base URL."""
    headers: Mapping[str, str] = {}
    """Headers of a passed request, where its client sends none."""
    model_in_path: bool = False
    """True: the URL has the model's name, and the body has none."""
    default_tokens: int | None = None
    """Most tokens of an answer where the codec states a limit by itself; None: it states none."""
    continues_turns: bool = False
    """True: a provider continues an assistant message that ends the conversation."""
    agent: str = "openai_compatible"
    """Type of the agent that plays models which are registered by a URL."""


def counts_of(values: Sequence[Any]) -> list[int]:
    """Return the positive whole numbers among a request's values."""
    return [value for value in values if type(value) is int and value > 0]
