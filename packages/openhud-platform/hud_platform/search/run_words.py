"""Text of a run by field, and the words of it that are indexed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import sqlalchemy as sa

from hud import exact_json
from hud_platform.search.query import TAGS, WORD
from hud_platform.store import tables

LONGEST_STEP = 1 << 20
"""Bytes of a step's payload; longer ones are not indexed."""
PHRASES = {"prompt": 3_000, "result": 4_000, "answer": 3_000}
"""Words of a field in their order, its first; of later words, each is indexed once, so that phrases do not match there."""
_PHRASE = 1_500
"""`PHRASES` of any other field. All together stay below the 16,383 positions of PostgreSQL."""
MOST_WORDS = 20_000
"""Indexed words of one field."""
_DEEPEST = 4
"""Nesting of lists and objects around a text: messages, a message, its blocks, a block."""

_ALPHABET = bytes(
    ord(char.lower()) if char.isalnum() else ord(" ") for char in map(chr, range(128))
)
_PLAIN = _ALPHABET + bytes(128)
"""ASCII letters in lower case and digits; a space for every other character."""
_LETTERS = bytes(ord("0") if char != ord(" ") else char for char in _PLAIN)
_LONG_WORD = b"0" * 65
"""`_LETTERS` of a word that is longer than one that is indexed."""

Texts = dict[str, list[str]]
"""Texts of a run, by field."""


def texts_of(connection: sa.Connection, traces: Sequence[str]) -> dict[str, Texts]:
    """Return the texts of each run's steps, by trace."""
    steps = tables.steps
    query = (
        sa.select(steps.c.trace_id, steps.c.payload)
        .where(steps.c.trace_id.in_(traces), sa.func.length(steps.c.payload) <= LONGEST_STEP)
        .order_by(steps.c.trace_id, steps.c.step_id)
    )
    payloads: dict[str, list[bytes]] = {trace: [] for trace in traces}
    for trace, payload in connection.execute(query).all():
        payloads[trace].append(payload)
    return {trace: _step_texts(steps) for trace, steps in payloads.items()}


def run_texts(texts: Texts, run: Any) -> Texts:
    """Return the texts of a run with those of its row."""
    return {
        **texts,
        "answer": [*texts.get("answer", ()), run.content or ""],
        "error": [*texts.get("error", ()), run.error or ""],
    }


def tagged_words(texts: Mapping[str, Iterable[str]]) -> str:
    """Return the words of texts, each with the tag of its field."""
    tagged = []
    for field, parts in texts.items():
        words = words_of("\n".join(parts))
        phrase = PHRASES.get(field, _PHRASE)
        if len(words) > phrase:
            later = dict.fromkeys(words[phrase:])
            words = words[:phrase] + list(later)[: MOST_WORDS - phrase]
        if words:
            tag = TAGS[field]
            tagged.append(tag + f" {tag}".join(words))
    return " ".join(tagged)


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case: what `WORD` finds, several times as fast where the text is ASCII."""
    if text.isascii():
        plain = text.encode().translate(_PLAIN)
        if _LONG_WORD not in plain.translate(_LETTERS):
            return plain.decode().split()
    return WORD.findall(text.lower())


def _step_texts(payloads: Sequence[bytes]) -> Texts:
    """Return the texts of a run's steps; none of a payload that is no step."""
    texts: Texts = defaultdict(list)
    for step in _steps(payloads):
        if isinstance(step, dict):
            _add_step(texts, step)
    return texts


def _steps(payloads: Sequence[bytes]) -> list[Any]:
    """Return the values of payloads that are JSON."""
    try:
        # Hot path: one document is read sooner than its parts.
        return list(exact_json.loads(b"[%b]" % b",".join(payloads)))
    except exact_json.JSONDecodeError:
        steps = []
        for payload in payloads:
            with suppress(exact_json.JSONDecodeError):
                steps.append(exact_json.loads(payload))
        return steps


def _add_step(texts: Texts, step: dict[str, Any]) -> None:
    source = step.get("source")
    if source == "agent":
        for part in ("messages", "content", "refusal"):
            _add(texts["answer"], step.get(part))
        _add(texts["thought"], step.get("reasoning"))
        calls = step.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, dict):
                _add(texts["tool"], call.get("name"))
                _add_values(texts["argument"], call.get("arguments"))
    elif source == "tool":
        _add_tool(texts, step)
    elif source in ("user", "system"):
        _add(texts["prompt"], step.get("messages"))
    _add(texts["error"], step.get("error"))


def _add_tool(texts: Texts, step: dict[str, Any]) -> None:
    # The call itself is a part of the agent's step; clients that record none have only its name here.
    if isinstance(step.get("call"), dict):
        _add(texts["tool"], step["call"].get("name"))
    result = step.get("result")
    _add(texts["result"], result)
    if isinstance(result, dict) and (result.get("isError") or result.get("is_error")):
        _add(texts["error"], result)


def _add(parts: list[str], value: Any, depth: int = 0) -> None:
    """Add the texts of messages, of content in blocks, or of a text itself."""
    if isinstance(value, str):
        parts.append(value)
    elif value is not None and depth <= _DEEPEST:
        if isinstance(value, dict):
            _add(parts, value.get("content", value.get("text")), depth + 1)
        elif isinstance(value, list):
            for part in value:
                _add(parts, part, depth + 1)


def _add_values(parts: list[str], value: Any, depth: int = 0) -> None:
    """Add the names and values of a call's arguments."""
    if isinstance(value, dict | list):
        if depth <= _DEEPEST:
            if isinstance(value, dict):
                parts += value
                value = value.values()
            for nested in value:
                _add_values(parts, nested, depth + 1)
    elif value is not None:
        parts.append(str(value))
