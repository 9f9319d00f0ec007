"""Calls of one trace of an observability system as runs: the longest conversation is the trace's, the others name it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hud.exchange import ForeignRun
from hud.trace.ids import trace_id_of
from hud.trace.recorded_time import now
from hud_integrations.sources.conversations import Conversations, ModelCall


def runs_of_trace(name: str, calls: Iterable[ModelCall], **fields: Any) -> Iterator[ForeignRun]:
    """Yield the conversations of a trace's calls; `name` is unique in all sources, `fields` are those of the trace's run."""
    conversations = Conversations()
    for call in sorted(calls, key=lambda call: (call.started_at or now(), call.id)):
        conversations.add(call)
    if not conversations.all:
        return
    main = max(conversations.all, key=lambda conversation: len(conversation.trace.steps))
    extra = fields.pop("extra", None) or {}
    for conversation in conversations.all:
        if conversation is main:
            values = {key: value for key, value in fields.items() if value is not None}
            yield conversation.run(foreign_id=name, extra={**conversation.extra, **extra}, **values)
        else:
            conversation.extra["parent_trace_id"] = trace_id_of(name)
            yield conversation.run(foreign_id=f"{name}:{conversation.id}", slug=fields.get("slug"))


def reward_of(scores: Iterable[Mapping[str, Any]]) -> tuple[float | None, dict[str, Any] | None]:
    """Return the reward of named scores, and the grade that lists them: the score `reward`, else the mean of the numbers."""
    values = {
        str(score.get("name") or score.get("key")): float(score[field])
        for score in scores
        for field in ("value", "score")
        if isinstance(score.get(field), int | float | bool)
    }
    if not values:
        return None, None
    reward = values.get("reward", sum(values.values()) / len(values))
    parts = [{"name": name, "value": value} for name, value in values.items()]
    return reward, {"score": reward, "subscores": parts}
