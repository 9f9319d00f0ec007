"""Index of the turns that a model sampled in one run: it leads from a message of a request back to the sampled tokens.

A program sends its conversation anew with every request, and not always as it was: it drops thoughts, adds default arguments,
shortens, goes back, lets several agents talk. A conversation is known by a digest of its tools and messages, in which answers of
the model count as themselves. So a message in an answer's place is that answer if it follows the same conversation and shows the same
(`hud_platform.gateway.answer_rewrites`). The tokens of the last such answer, prompt and output, are the beginning of the next prompt.

Knows messages and token ids; nothing of requests, stores and templates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hud import exact_json
from hud.inference.dialects.conversation_parts import text_in
from hud.trace import ChatMessage, Continuation, ToolSpec
from hud.trace.sampled.token_columns import pack_ids, unpack_ids
from hud_platform.gateway.answer_rewrites import (
    NORMALISATIONS,
    Rewrite,
    digest,
    message_digest,
    restored,
    rewrites,
)
from hud_platform.gateway.sealed_thoughts import SEALED_TURNS

Key = tuple[int, int]
"""Number of a call and of the choice among its answers."""
LEAST_QUOTED = 20
"""Fewest characters without white space of an answer that counts as quoted where a message contains it; a shorter one has to be the
whole message."""


_TURN_BYTES, _DIGEST_BYTES = 2048, 128
"""Memory of a turn besides its message and its tokens, and of the digest of a message."""


@dataclass(frozen=True)
class IndexedTurn:
    """A sampled turn."""

    key: Key
    message: ChatMessage
    """The answer as it was sampled, with its thoughts."""
    digest: str
    """Digest of the conversation up to and including the answer."""
    length: int | None
    """Tokens of prompt and output; None: the turn has no ids."""
    before: IndexedTurn | None
    """The turn whose tokens the prompt begins with."""
    added: bytes
    """Packed ids after those of `before`."""

    def token_ids(self) -> list[int]:
        """Return the ids of prompt and output."""
        parts: list[bytes] = []
        turn: IndexedTurn | None = self
        while turn is not None:
            parts.append(turn.added)
            turn = turn.before
        return unpack_ids(b"".join(reversed(parts)))


@dataclass(frozen=True)
class ReadConversation:
    """A request's conversation, with the answers in it that are known."""

    messages: list[ChatMessage]
    """The messages, each answer as it was sampled."""
    digest: str
    """Digest of the conversation."""
    continuation: Continuation | None
    """Ids of the last answer, and the messages that they cover; None: no answer is known that has ids."""
    continued: Key | None
    """The turn of `continuation`."""
    answers: frozenset[Key]
    """Turns whose answers stand in the conversation, as messages, rewritten ones included, or quoted in others."""
    rewrites: frozenset[tuple[Key, Rewrite]] = frozenset()
    """Kinds of rewrites of answers, each at the first request that has it."""


UNREAD = ReadConversation([], "", None, None, frozenset())
"""Of a request that is not read."""


class TurnIndex:
    """The turns of a run."""

    def __init__(self) -> None:
        self._turns: dict[Key, IndexedTurn] = {}
        self._answers: dict[str, list[IndexedTurn]] = {}
        """By digest of the conversation that they answer."""
        self._handles: dict[str, IndexedTurn] = {}
        """By call id, sealed turn, and digest of what the answer shows: the newest turn."""
        self._rewritten: set[tuple[Key, Rewrite]] = set()
        self._unquoted: dict[Key, str] = {}
        """Answers that stand in no request so far, without white space."""
        self._seen: set[str] = set()
        """Digests of messages of earlier requests that are no answers."""
        self.size = 0
        """Estimate of the memory, in bytes."""

    def read(
        self, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec], effort: str | None = None
    ) -> ReadConversation:
        """Return a request's conversation; `tools` and `effort` are what else its prompt shows."""
        named = {tool.name: tool for tool in tools}
        state = digest(effort, [tool.function() for tool in tools])
        read: list[ChatMessage] = []
        answers: set[Key] = set()
        rewritten: set[tuple[Key, Rewrite]] = set()
        last: tuple[IndexedTurn, int] | None = None
        others: list[ChatMessage] = []
        for message in messages:
            turn = sampled = None
            if message["role"] == "assistant":
                turn, kinds = self._answer(state, message, named)
                sampled = turn or self._by_handle(message)
                if sampled is not None:
                    answers.add(sampled.key)
                    rewritten |= {(sampled.key, kind) for kind in kinds}
            if sampled is None:
                others.append(message)
            if turn is None:
                read.append(message)
                state = digest(state, message_digest(message))
            else:
                read.append(restored(turn.message, message))
                state = turn.digest
                if turn.length is not None:
                    last = turn, sum(earlier["role"] != "system" for earlier in read)
        if read and read[-1]["role"] == "assistant":
            last = None  # The model continues this message.
        answers |= self._quoted(others, answers)
        first_seen = frozenset(rewritten - self._rewritten)
        self._rewritten |= rewritten
        return ReadConversation(
            messages=without_handles(read),
            digest=state,
            continuation=None if last is None else Continuation(last[0].token_ids(), last[1]),
            continued=None if last is None else last[0].key,
            answers=frozenset(answers),
            rewrites=first_seen,
        )

    def add(
        self,
        key: Key,
        conversation: str,
        message: ChatMessage,
        token_ids: Sequence[int] | None,
        *,
        continued: Key | None = None,
        sealed: str | None = None,
    ) -> None:
        """Add a turn that answers the conversation with this digest.

        `token_ids`: of prompt and output; None: there are none. `continued`: the turn that its prompt was to continue; where it does,
        the ids are kept once. `sealed`: its name in the seal of its thought.
        """
        skipped = 0 if token_ids is None else self.shared(continued, token_ids)
        before = self._turns[continued] if continued is not None and skipped else None
        turn = IndexedTurn(
            key=key,
            message=message,
            digest=digest(conversation, list(key)),
            length=None if token_ids is None else len(token_ids),
            before=before,
            added=b"" if token_ids is None else pack_ids(token_ids[skipped:]),
        )
        self._turns[key] = turn
        # Its text is held twice: also without white space.
        self.size += _TURN_BYTES + len(turn.added) + 2 * len(exact_json.dumps(message))
        self._answers.setdefault(conversation, []).append(turn)
        calls = [call["id"] for call in message.get("tool_calls") or []]
        for handle in (*calls, sealed, message_digest(message)):
            if handle is not None:
                self._handles[handle] = turn
        if text := _letters(message):
            self._unquoted[key] = text

    def shared(self, key: Key | None, token_ids: Sequence[int]) -> int:
        """Return the tokens of a turn's prompt and output, if `token_ids` begin with them; else 0."""
        turn = None if key is None else self._turns.get(key)
        if turn is None or turn.length is None:
            return 0
        ids = turn.token_ids()
        return len(ids) if list(token_ids[: len(ids)]) == ids else 0

    def _answer(
        self, conversation: str, message: ChatMessage, tools: Mapping[str, ToolSpec]
    ) -> tuple[IndexedTurn | None, set[Rewrite]]:
        """Return the turn in whose place a message stands, and the kinds of its rewrites."""
        handled = self._by_handle(message)
        # Of several answers to one conversation, that with the message's ids, else the newest.
        answers = sorted(
            self._answers.get(conversation, ()),
            key=lambda turn: (turn is not handled, -turn.key[0], turn.key[1]),
        )
        for turn in answers:
            kinds = rewrites(turn.message, message, tools)
            if kinds <= NORMALISATIONS:
                return turn, kinds
        if handled is None:
            return None, set()
        kinds = rewrites(handled.message, message, tools)
        return None, {"conversation"} if kinds <= NORMALISATIONS else kinds - NORMALISATIONS

    def _by_handle(self, message: ChatMessage) -> IndexedTurn | None:
        """Return the turn that a message was made of, if one of its handles tells it."""
        calls = [call["id"] for call in message.get("tool_calls") or []]
        handles = (*calls, *message.get(SEALED_TURNS, ()), message_digest(message))
        return next((self._handles[handle] for handle in handles if handle in self._handles), None)

    def _quoted(self, messages: Sequence[ChatMessage], answers: set[Key]) -> set[Key]:
        """Return the turns whose text stands in messages that are no answers themselves, such as a summary, a plan or a result."""
        for key in answers:
            self._unquoted.pop(key, None)
        texts = []
        for message in messages:
            text = _letters(message)
            # What stood in a request before an answer was sampled does not quote it.
            if (identity := digest(text)) not in self._seen:
                self._seen.add(identity)
                self.size += _DIGEST_BYTES
                texts.append(text)
        quoted = {
            key
            for key, answer in self._unquoted.items()
            if any(
                answer in text if len(answer) >= LEAST_QUOTED else answer == text for text in texts
            )
        }
        for key in quoted:
            del self._unquoted[key]
        return quoted


def _letters(message: ChatMessage) -> str:
    """Return a message's text without white space."""
    return "".join(text_in(message["content"]).split())


def without_handles(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return messages without the names of sealed turns."""
    return [
        {name: value for name, value in message.items() if name != SEALED_TURNS}
        if SEALED_TURNS in message
        else message
        for message in messages
    ]
