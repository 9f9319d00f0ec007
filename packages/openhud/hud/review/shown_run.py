"""A run as a reviewer reads it: numbered steps, shortened by a rule that the reader is told.

A long text keeps its beginning and its end. Of a long run, whole steps are left out in the middle: a third of the room is for the first
ones, the rest for the last ones, where runs fail. Each gap says what it left out, and nothing may rest on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hud.trace import AgentStep, ImageContent, Step, SubagentStep, ToolStep, Trace

LONGEST_TEXT = 2_000
"""Characters of one text of a step."""
MOST_TEXT = 48_000
"""Characters of a run's steps."""
_FIRST_SHARE = 1 / 3


@dataclass(frozen=True)
class ShownRun:
    """A run for a reviewer."""

    document: dict[str, Any]
    """JSON object of the run."""
    quotes: Mapping[int, str]
    """By number of each shown step: its texts, as shown."""
    left_out: int
    """Steps that are not shown."""


@dataclass(frozen=True)
class ShownSteps:
    """Steps of a run, without those in the middle that do not fit."""

    entries: list[dict[str, Any]]
    texts: Mapping[int, list[tuple[str, str]]]
    """By number of each shown step: its texts, as shown, each with its kind."""
    left_out: int


def shown_run(run: Mapping[str, Any], trace: Trace, most: int = MOST_TEXT) -> ShownRun:
    """Return a run of the platform (`GET /v2/trace/ID/full`) in at most about `most` characters of steps."""
    shown = shown_steps(trace.steps, most)
    document = {
        "task": run["slug"],
        "status": run["status"],
        "reward": run["reward"],
        "failure": run["failure_kind"],
        "error": shortened(run["error"] or ""),
        "grade": shortened(str(_grade(run))),
        "steps": shown.entries,
    }
    quotes = {number: "\n".join(text for _, text in texts) for number, texts in shown.texts.items()}
    return ShownRun(document, quotes, shown.left_out)


def shown_steps(steps: Iterable[Step], most: int) -> ShownSteps:
    """Return steps in at most about `most` characters."""
    texts = {
        step.step_id: [(kind, shortened(text)) for kind, text in step_texts(step)] for step in steps
    }
    sizes = [sum(len(text) for _, text in step) for step in texts.values()]
    numbers = list(texts)
    first, last = _ends(sizes, most)
    gap = numbers[first : len(numbers) - last]
    entries: list[dict[str, Any]] = [_entry(number, texts[number]) for number in numbers[:first]]
    if gap:
        entries.append({"left_out": f"{len(gap)} steps, {gap[0]} to {gap[-1]}"})
    entries += [_entry(number, texts[number]) for number in numbers[len(numbers) - last :]]
    shown = {number: texts[number] for number in numbers if number not in set(gap)}
    return ShownSteps(entries, shown, len(gap))


def shortened(text: str) -> str:
    """Return a text of at most about `LONGEST_TEXT` characters: a longer one without its middle."""
    if len(text) <= LONGEST_TEXT:
        return text
    half = LONGEST_TEXT // 2
    return f"{text[:half]}\n[{len(text) - 2 * half:,} characters left out]\n{text[-half:]}"


def step_texts(step: Step) -> Iterator[tuple[str, str]]:
    """Yield the texts of a step, each with its kind."""
    for message in step.messages:
        yield message.role, message.text
    if isinstance(step, AgentStep):
        yield from _turn_texts(step)
    elif isinstance(step, ToolStep) and step.result is not None:
        yield ("error" if step.result.is_error else "result"), step.result.text
        pictures = sum(isinstance(block, ImageContent) for block in step.result.content)
        if pictures:
            yield "pictures", str(pictures)
    elif isinstance(step, SubagentStep):
        yield "subagent", f"{step.extra.get('tool')}: reward {step.extra.get('reward')}"
    if step.task_call is not None:
        yield step.task_call.phase, step.task_call.name
    if step.error:
        yield "error", step.error


def _turn_texts(step: AgentStep) -> Iterator[tuple[str, str]]:
    if step.reasoning:
        yield "thought", step.reasoning
    if step.content:
        yield "agent", step.content
    for call in step.tool_calls:
        yield "call", f"{call.name} {call.arguments_text}"


def _entry(number: int, texts: Sequence[tuple[str, str]]) -> dict[str, Any]:
    return {"step": number, "texts": [{"kind": kind, "text": text} for kind, text in texts]}


def _ends(sizes: Sequence[int], most: int) -> tuple[int, int]:
    """Return how many of the first and of the last steps are shown; the last one always is."""
    if sum(sizes) <= most:
        return len(sizes), 0
    first = _fitting(sizes, int(most * _FIRST_SHARE))
    rest = most - sum(sizes[:first])
    last = _fitting(sizes[first:][::-1], rest)
    return first, max(last, 1 if first < len(sizes) else 0)


def _fitting(sizes: Sequence[int], room: int) -> int:
    """Return how many of these fit, in their order."""
    for count, size in enumerate(sizes):
        room -= size
        if room < 0:
            return count
    return len(sizes)


def _grade(run: Mapping[str, Any]) -> Any:
    grade = run.get("grade") or {}
    return {name: grade[name] for name in ("content", "subscores", "info") if grade.get(name)}
