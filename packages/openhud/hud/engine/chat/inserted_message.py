"""Insertion of a user message into recorded token ids, directly before the assistant's first turn.

The other ids stay as they were sampled: nothing of the conversation is tokenized again.
"""

from __future__ import annotations

from dataclasses import dataclass

from hud.engine.chat.chat_format import ChatFormat
from hud.errors import UsageError
from hud.trace import ChatMessage


@dataclass(frozen=True)
class InsertedMessage:
    """Ids of a message, and of the beginning of a turn that follows it."""

    message: list[int]
    turn: list[int]

    @classmethod
    def of(cls, chat: ChatFormat, text: str) -> InsertedMessage:
        """Return a user message in a chat format. Raises `UsageError` for a template that writes none after another."""
        question: list[ChatMessage] = [{"role": "user", "content": "?"}]
        before = chat.render_text(question, [], generation=False)
        begun = chat.render_text(question, [])
        rendered = chat.render_text([*question, {"role": "user", "content": text}], [])
        turn = begun[len(before) :]
        if not (
            begun.startswith(before) and rendered.startswith(before) and rendered.endswith(turn)
        ):
            raise UsageError(
                f"{chat.folder}: the chat template writes no user message after another, so that a teacher cannot read a hint."
            )
        message = rendered[len(before) : len(rendered) - len(turn)]
        return cls(chat.encode_rendered(message), chat.encode_rendered(turn))

    def place(self, tokens: list[int], first_output: int) -> int:
        """Return the position before the turn whose output begins at `first_output`. Raises `UsageError` for another beginning of a turn."""
        place = first_output - len(self.turn)
        if tokens[max(place, 0) : first_output] != self.turn:
            raise UsageError(
                "A run's first turn begins otherwise than the chat template's turns, so that a teacher cannot read a hint before it."
            )
        return place
