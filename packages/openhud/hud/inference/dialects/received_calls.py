"""Tool calls that a provider streams, and their events.

Text of arguments is forwarded while it is received if it can be a JSON object. Other text, such as JSON that is encoded a
second time, is decoded when it is complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hud import exact_json
from hud.inference.dialects.events import CallArguments, CallBegun, CallEnded, Event
from hud.inference.dialects.tool_calls import are_whole, new_call_id
from hud.inference.retries import BrokenAnswer
from hud.trace import parsed_arguments


@dataclass
class ReceivedCall:
    """A tool call that is being received."""

    index: int | None = None
    id: str = ""
    name: str = ""
    text: str = ""
    """Arguments so far, as JSON text."""

    @property
    def complete(self) -> bool:
        """True if the arguments are a whole JSON object."""
        return are_whole(self.text)

    def take(self, identifier: str = "", name: str = "", arguments: Any = None) -> None:
        """Add a piece of the call."""
        self.id = self.id or identifier
        # A piece may repeat the name so far.
        self.name = name if name.startswith(self.name) else self.name + name
        text = json_text(arguments)
        if text.strip() == self.text.strip() and self.complete:
            return  # The last piece repeats all arguments.
        if text.strip() and self.text.strip() == "{}":
            self.text = ""  # Some servers begin every call with an empty object.
        self.text += text


class CallEvents:
    """Events of the tool calls of one choice, of which one at a time is open; `named` maps names on the wire to ours."""

    def __init__(self, choice: int, named: Mapping[str, str]) -> None:
        self.ended = 0
        """Number of calls that have ended."""
        self._choice = choice
        self._named = named
        self._ids: set[str] = set()
        self._written: int | None = None
        """Characters of the open call's arguments that were forwarded; None: the call has not begun."""

    def more(self, call: ReceivedCall) -> list[Event]:
        """Return the events of the open call's new text, as far as it can be forwarded."""
        forwarded = call.name and call.text.startswith("{") and call.text.strip() != "{}"
        return self._write(call, call.text) if forwarded else []

    def end(self, call: ReceivedCall, *, cut: bool) -> list[Event]:
        """Return the last events of the open call; one that the turn's end `cut` off has no `CallEnded`.

        Raises `BrokenAnswer` for a call without a name, or with arguments that are no JSON object.
        """
        if not call.name:
            raise BrokenAnswer(f"made a tool call without a name: {call.text[:100]}")
        arguments = parsed_arguments(call.text)
        complete = isinstance(arguments, dict) and (call.complete or not cut)
        if not complete and not cut:
            raise BrokenAnswer(
                f"made a call of {call.name!r} whose arguments are no JSON object: {call.text[:100]}"
            )
        text = call.text
        if complete and not text.startswith("{"):
            text = exact_json.dumps(arguments).decode()
        events = self._write(call, text)
        if complete:
            events.append(CallEnded(self._choice, self.ended))
        self.ended, self._written = self.ended + 1, None
        return events

    def _write(self, call: ReceivedCall, arguments: str) -> list[Event]:
        """Return the events of the open call up to `arguments`."""
        events: list[Event] = []
        if self._written is None:
            self._written = 0
            identifier = call.id if call.id not in self._ids | {""} else new_call_id()
            self._ids.add(identifier)
            name = self._named.get(call.name, call.name)
            events.append(CallBegun(self._choice, self.ended, identifier, name))
        if len(arguments) > self._written:
            events.append(CallArguments(self._choice, self.ended, arguments[self._written :]))
            self._written = len(arguments)
        return events


def json_text(arguments: Any) -> str:
    """Return arguments as JSON text; servers send text, an object or null."""
    if arguments is None:
        return ""
    return arguments if isinstance(arguments, str) else exact_json.dumps(arguments).decode()
