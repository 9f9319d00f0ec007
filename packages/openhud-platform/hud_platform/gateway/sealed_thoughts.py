"""Seals of thoughts: opaque texts that clients send back, and that restore the thoughts of earlier turns.

A seal holds the thought and the id of its response, signed by this server; nothing is stored. It stands in the field that each
dialect has for such a text (`signature`, `encrypted_content`, `thoughtSignature`). Other texts there, of other servers or forged
ones, restore nothing.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import zlib
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from hud import exact_json
from hud.inference.dialects.conversation_parts import SEALS
from hud.inference.dialects.events import Begun, Event, ReasoningDelta, ThoughtSealed, TokensDrawn
from hud.inference.dialects.request import GenerationRequest
from hud.trace import ChatMessage

SEALED_TURNS = "sealed_turns"
"""Key of an assistant message with the names of the turns whose thoughts are in its seals; `TurnIndex.read` removes it."""
_MARK = b"hudthought"
_SIGNATURE_BYTES = 32
LARGEST_SEAL = 1 << 23
"""Most characters of a seal that is read."""


class SealedThoughts:
    """Seals thoughts and opens seals, with the signature of one server."""

    def __init__(self, sign: Callable[[str], str]) -> None:
        """`sign` returns the signature of a text, in hexadecimal digits."""
        self._sign = sign

    def seal(self, response: str, choice: int, thought: str) -> str:
        """Return the seal of a thought as base64, as fields of bytes require it."""
        content = zlib.compress(exact_json.dumps([response, choice, thought]))
        return base64.b64encode(_MARK + self._signature(content) + content).decode()

    def open(self, seal: str) -> tuple[str, str] | None:
        """Return the thought in a seal and the name of its turn; None for any other text."""
        if len(seal) > LARGEST_SEAL:
            return None
        plain = seal.translate(_STANDARD).rstrip("=")
        try:
            raw = base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
        except (binascii.Error, ValueError):
            return None
        begin = len(_MARK) + _SIGNATURE_BYTES
        content = raw[begin:]
        if not hmac.compare_digest(raw[:begin], _MARK + self._signature(content)):
            return None
        response, choice, thought = exact_json.loads(zlib.decompress(content))
        return thought, turn_name(response, choice)

    def restored(self, messages: list[ChatMessage], *, named: bool = False) -> list[ChatMessage]:
        """Return messages as clients send them with the thoughts of their seals, and without the seals.

        `named`: with the names of their turns (`SEALED_TURNS`).
        """
        return [
            self._restored(message, named) if SEALS in message else message for message in messages
        ]

    async def sealing(
        self, events: AsyncGenerator[list[Event], None], request: GenerationRequest
    ) -> AsyncGenerator[list[Event], None]:
        """Add the seal of each choice's thought to the events of a turn, behind the thought's last one."""
        thoughts: dict[int, str] = {}
        async with aclosing(events) as batches:
            async for batch in batches:
                sealed: list[Event] = []
                for event in batch:
                    if isinstance(event, ReasoningDelta):
                        thoughts[event.choice] = thoughts.get(event.choice, "") + event.text
                    elif not isinstance(event, Begun | TokensDrawn) and event.choice in thoughts:
                        thought = thoughts.pop(event.choice)
                        seal = self.seal(request.response_id, event.choice, thought)
                        sealed.append(ThoughtSealed(event.choice, seal))
                    sealed.append(event)
                yield sealed

    def _restored(self, message: ChatMessage, named: bool) -> ChatMessage:
        restored: dict[str, Any] = {name: value for name, value in message.items() if name != SEALS}
        opened = [sealed for seal in message[SEALS] if (sealed := self.open(seal)) is not None]
        if opened:
            restored["reasoning_content"] = "\n\n".join(dict.fromkeys(text for text, _ in opened))
        if opened and named:
            restored[SEALED_TURNS] = list(dict.fromkeys(turn for _, turn in opened))
        return restored

    def _signature(self, content: bytes) -> bytes:
        # No other text that the server signs begins so: a seal is no pass and no link.
        return bytes.fromhex(self._sign(f"hudthought_{base64.b64encode(content).decode()}"))


def turn_name(response: str, choice: int) -> str:
    """Return the name of a turn in seals."""
    return f"{response}/{choice}"


_STANDARD = str.maketrans("-_", "+/")
"""Clients that decode base64 may write it in the alphabet of URLs."""
