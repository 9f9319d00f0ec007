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

    def open(self, seal: str) -> str | None:
        """Return the thought in a seal; None for any other text."""
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
        thought: str = exact_json.loads(zlib.decompress(content))[2]
        return thought

    def restored(self, messages: list[ChatMessage]) -> list[ChatMessage]:
        """Return messages as clients send them with the thoughts of their seals, and without the seals."""
        return [self._restored(message) if SEALS in message else message for message in messages]

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

    def _restored(self, message: ChatMessage) -> ChatMessage:
        restored: dict[str, Any] = {name: value for name, value in message.items() if name != SEALS}
        opened = [self.open(seal) for seal in message[SEALS]]
        thoughts = [thought for thought in opened if thought is not None]
        if thoughts:
            restored["reasoning_content"] = "\n\n".join(dict.fromkeys(thoughts))
        return restored

    def _signature(self, content: bytes) -> bytes:
        # No other text that the server signs begins so: a seal is no pass and no link.
        return bytes.fromhex(self._sign(f"hudthought_{base64.b64encode(content).decode()}"))


_STANDARD = str.maketrans("-_", "+/")
"""Clients that decode base64 may write it in the alphabet of URLs."""
