"""Requests to models about foreign text, and their replies: the text is data of a JSON document, the reply is one JSON object.

A JSON string cannot be terminated by what it holds, so that text of an agent stays separate from the instructions.
"""

from __future__ import annotations

import json
import re
from typing import Any

_CONTROL = re.compile(r"\[(?=/?[A-Z_]{3,}\]|\||e~\[|gMASK\]|unused)|\](?=~)")
"""Brackets of control tokens: [INST], [|assistant|] of EXAONE, [gMASK] of GLM, ]~b] and [e~[ of MiniMax."""


def quoted_json(value: Any) -> str:
    """Return foreign text, in a JSON value, without control tokens of chat templates."""
    # Spelled with "<", or as [INST] is: the model's server could read them as such.
    text = json.dumps(value, ensure_ascii=False).replace("<", "\\u003c")
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def text_after_reasoning(text: str) -> str:
    """Return what follows reasoning between think marks; reasoning without an end is followed by nothing."""
    if not text.lstrip().startswith("<think>"):
        return text
    _, end, reply = text.rpartition("</think>")
    return reply if end else ""


def object_with(name: str, reply: str) -> dict[str, Any] | None:
    """Return the object in a reply that has the key `name`; None for none, or for several, of which one may be a quotation.

    A key outside of readable objects counts, too: that of a verdict which is broken because it quotes another.
    """
    decoder = json.JSONDecoder(object_pairs_hook=_distinct)
    objects: list[dict[str, Any]] = []
    rest, end = [], 0
    at = reply.find("{")
    while at >= 0:
        try:
            parsed, after = decoder.raw_decode(reply, at)
            objects.append(parsed)
            rest.append(reply[end:at])
            end = after
        except (ValueError, RecursionError):
            after = at + 1
        at = reply.find("{", after)
    rest.append(reply[end:])
    key = rf"""[{{,]\s*{name}\s*:|["'“”]{name}\\?["'“”]\s*:"""
    named = [value for value in objects if name in value]
    return named[0] if len(named) == 1 and not re.search(key, "\n".join(rest)) else None


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a name stands twice")
    return fields
