"""A trace as an HTML table of its steps, for a notebook."""

from __future__ import annotations

from hud.trace.notebook.html_table import table, titled
from hud.trace.steps import AgentStep, Step, SubagentStep, ToolStep, Trace


def trace_html(trace: Trace) -> str:
    """Return the steps of a trace, with its answer."""
    rows = [(step.step_id, step.source, _content(step), _seconds(step)) for step in trace.steps]
    title = (
        f"Trace {(trace.trace_id or '')[:12]}: {len(trace.steps)} step{'s' * (len(trace.steps) != 1)}, "
        f"{trace.stop_reason or trace.status}"
    )
    answer = table(("answer",), [(trace.content,)]) if trace.content is not None else ""
    return titled(title, table(("", "source", "content", "time"), rows), answer)


def _content(step: Step) -> str:
    texts = [f"{message.role}: {message.text}" for message in step.messages]
    if step.task_call is not None:
        texts.append(f"{step.task_call.phase} {step.task_call.name}")
    if isinstance(step, AgentStep):
        texts += [
            step.content or "",
            *(f"{call.name}({call.arguments_text})" for call in step.tool_calls),
        ]
    if isinstance(step, ToolStep) and step.call is not None and step.result is not None:
        failed = " failed" if step.result.is_error else ""
        texts.append(f"{step.call.name}{failed}: {step.result.text}")
    if isinstance(step, SubagentStep):
        texts.append(f"{step.extra.get('tool')}: reward {step.extra.get('reward')}")
    if step.error is not None:
        texts.append(step.error)
    return "\n".join(text for text in texts if text)


def _seconds(step: Step) -> str | None:
    if step.ended_at is None:
        return None
    return f"{(step.ended_at - step.started_at).total_seconds():.2f} s"
