"""Tool calls of a streamed turn, assembled from their pieces.

By the dialect's documentation a call's first piece has `index`, `id` and `name`, later pieces `index` and text of the
arguments. Servers differ: all calls have index 0, none or null; the name, or a new id, comes with each piece; ids are
repeated or missing; pieces of several calls alternate; arguments are an object. Pieces of one call with new ids and the
whole name are joined where their text cannot begin another call's arguments.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from hud.inference.dialects.chat_completions.answer import function_in
from hud.inference.dialects.received_calls import ReceivedCall, json_text
from hud.inference.dialects.tool_calls import arguments_in
from hud.trace import call_message, parsed_arguments


class StreamedCalls:
    """The calls of one choice, in the order in which they began."""

    def __init__(self, declared: Collection[str] = ()) -> None:
        """`declared` are the names of the request's tools."""
        self.calls: list[ReceivedCall] = []
        self._declared = declared

    def take(self, pieces: list[dict[str, Any]]) -> None:
        """Add the pieces of one chunk."""
        taken: list[ReceivedCall] = []
        for piece in pieces:
            call = self._continued(piece)
            if call is not None and _renews_id(call, piece):
                self._join_empty(call)
            elif call is None or self._begins(call, piece, taken):
                call = ReceivedCall(_index(piece))
                self.calls.append(call)
            function = function_in(piece)
            call.take(_id(piece), function.get("name") or "", arguments_in(function))
            taken.append(call)

    def messages(self) -> list[dict[str, Any]]:
        """Return the calls as the entries of a message's `tool_calls`, in the order of their indexes."""
        named = [call for call in self.calls if call.name or call.text]
        placed = sorted(named, key=lambda call: call.index or 0)
        return [call_message(call.id, call.name, call.text) for call in placed]

    def are(self, pieces: list[dict[str, Any]]) -> bool:
        """Return True if whole calls repeat those so far, one by one."""
        return (
            bool(pieces)
            and len(pieces) == len(self.calls)
            and all(
                function_in(piece).get("name") == call.name
                and parsed_arguments(arguments_in(function_in(piece)))
                == parsed_arguments(call.text)
                for piece, call in zip(pieces, self.calls, strict=True)
            )
        )

    def _continued(self, piece: dict[str, Any]) -> ReceivedCall | None:
        """Return the call that a piece belongs to, unless it begins another one."""
        index, identity = _index(piece), _id(piece)
        same_id = [call for call in self.calls if identity and call.id == identity]
        if index is None:
            return next(reversed(same_id or self.calls), None)
        same_index = [call for call in self.calls if call.index == index]
        both = [call for call in same_id if call.index == index]
        if both or same_index:
            return (both or same_index)[-1]
        # A piece without a name continues the call of its id.
        return same_id[-1] if same_id and not function_in(piece).get("name") else None

    def _join_empty(self, call: ReceivedCall) -> None:
        """Drop the call before `call` where it was its first piece, without arguments, under another id."""
        place = next(n for n, other in enumerate(self.calls) if other is call)
        before = self.calls[place - 1] if place else None
        if before is None or before.text.strip():
            return
        if (before.name, before.index) == (call.name, call.index):
            call.id = before.id or call.id
            del self.calls[place - 1]

    def _begins(self, call: ReceivedCall, piece: dict[str, Any], taken: list[ReceivedCall]) -> bool:
        """Return True if a piece begins another call than `call`, the last one with its index or id."""
        function, identity = function_in(piece), _id(piece)
        name, arguments = function.get("name") or "", arguments_in(function)
        if not name:
            return False
        if identity and call.id and identity != call.id:
            return True
        if not call.name:
            return False
        if any(call is other for other in taken):
            return True  # A chunk has one piece of a call.
        if call.complete:
            repeated = bool(identity) and json_text(arguments).strip() == call.text.strip()
            return name != call.name or bool(json_text(arguments).strip() and not repeated)
        return name != call.name and {name, call.name} <= set(self._declared)


def _renews_id(call: ReceivedCall, piece: dict[str, Any]) -> bool:
    """Return True if a piece with a new id and the whole name continues `call`: its text can begin no arguments."""
    name, identity = function_in(piece).get("name"), _id(piece)
    arguments = arguments_in(function_in(piece))
    if not identity or identity == call.id or name != call.name or _index(piece) is None:
        return False
    unfinished = call.text.lstrip().startswith("{") and not call.complete
    begins = not isinstance(arguments, str) or arguments.lstrip().startswith("{")
    return unfinished and not begins


def _index(piece: dict[str, Any]) -> int | None:
    index = piece.get("index")
    return None if index is None else int(index)


def _id(piece: dict[str, Any]) -> str:
    return str(piece.get("id") or "")
