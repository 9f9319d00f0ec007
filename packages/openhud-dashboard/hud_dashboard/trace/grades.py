"""View of a grade: a tree of subscores with their reasons, from an untrusted frame."""

from __future__ import annotations

from typing import Any

from hud_dashboard.trace.values import as_json, number_of, text_of

DEEPEST = 8
MOST_PARTS = 100
_SAID = ("score", "reward", "done", "content", "info", "isError", "subscores", "turn_rewards")

View = dict[str, Any]


def grade_of(frame: Any) -> View | None:
    """Return `{reward, content, is_error, parts, turns, info, rest}` of a grade frame; None for anything else.

    A part is `{name, value, weight, share, reason, info, parts}`; `share` is its weight among the positive ones.
    """
    if not isinstance(frame, dict) or not frame:
        return None
    score = frame.get("score", frame.get("reward"))
    rest = {name: value for name, value in frame.items() if name not in _SAID}
    info = frame.get("info")
    return {
        "reward": number_of(score),
        "content": text_of(frame.get("content")),
        "is_error": bool(frame.get("isError")),
        "parts": _parts(frame.get("subscores"), 0),
        "turns": _turns(frame.get("turn_rewards")),
        "info": as_json(info) if info else None,
        "rest": as_json(rest) if rest else None,
    }


def _turns(rewards: Any) -> list[float]:
    """Return the rewards of the first turns; empty for anything but numbers."""
    shown = rewards[:MOST_PARTS] if isinstance(rewards, list) else []
    return [value for reward in shown if (value := number_of(reward)) is not None]


def _parts(subscores: Any, depth: int) -> list[View]:
    if not isinstance(subscores, list) or depth >= DEEPEST:
        return []
    shown = [part for part in subscores[:MOST_PARTS] if isinstance(part, dict)]
    weights = [number_of(part.get("weight")) for part in shown]
    # Positive weights are normalized to shares; a negative weight is a penalty of that size.
    total = sum(weight for weight in weights if weight is not None and weight > 0)
    parts = []
    for part, weight in zip(shown, weights, strict=True):
        value = number_of(part.get("value"))
        share = weight / total if weight is not None and weight > 0 else None
        info = part.get("info")
        parts.append(
            {
                "name": str(part.get("name") or "?"),
                "value": value,
                "weight": weight,
                "share": share if len(shown) > 1 else None,
                "reason": _reason(info),
                "info": as_json(info) if info and _reason(info) is None else None,
                "parts": _parts(part.get("children"), depth + 1),
            }
        )
    return parts


def _reason(info: Any) -> str | None:
    """Return the reason of a part if its info has no other key."""
    if isinstance(info, dict) and len(info) == 1:
        (only,) = info.values()
        return only if isinstance(only, str) else None
    return info if isinstance(info, str) else None
