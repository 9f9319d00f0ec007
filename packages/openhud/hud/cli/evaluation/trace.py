"""`hud trace`: one run, step by step."""

from __future__ import annotations

from typing import Any

import click


@click.command(name="trace")
@click.argument("trace_id")
@click.option(
    "--json", "as_json", is_flag=True, help="Print the whole trace as JSON, tokens included."
)
@click.option("--full", is_flag=True, help="Do not shorten long texts.")
@click.option(
    "--spans",
    is_flag=True,
    help="Show spans instead of steps: robots, changed files, timed functions.",
)
def command(trace_id: str, as_json: bool, full: bool, spans: bool) -> None:
    """Show the steps of a run (by its id or the id's start)."""
    from hud.cli.platform_requests import run

    run(_show_spans(trace_id, as_json) if spans else _show(trace_id, as_json, full))


async def _show_spans(reference: str, as_json: bool) -> None:
    from hud.cli.output import console, print_json
    from hud.cli.platform_requests import pages

    spans = [span async for span in pages(f"/v2/trace/{reference}/spans")]
    if as_json:
        print_json(spans)
        return
    for span in spans:
        attributes = span.get("attributes")
        schema = attributes.get("hud.schema") if isinstance(attributes, dict) else None
        columns = (span.get("start_time"), schema, span.get("name"), span.get("status_message"))
        console().print("  ".join(str(part) for part in columns if part), markup=False)


async def _show(reference: str, as_json: bool, full: bool) -> None:
    from hud.cli.evaluation.jobs import run_label
    from hud.cli.output import console, number, print_json
    from hud.client import connect
    from hud.learning.turn_rewards import turn_rewards_of
    from hud.trace import parse_trace

    recorded = await connect().get(f"/v2/trace/{reference}/full")
    if as_json:
        print_json(recorded)
        return
    run, out = recorded["run"], console()
    out.print(run_label(run), style="bold", markup=False, end="")
    out.print(f"  {run['id']}  {run['status']}  reward {number(run['reward'])}")
    trace = parse_trace(recorded["trace"])
    _print_steps(trace, full)
    for line in _grade_tree((run["grade"] or {}).get("subscores") or []):
        out.print(line, markup=False)
    if rewards := turn_rewards_of(trace):
        out.print(f"rewards of turns: {' '.join(f'{reward:.3f}' for reward in rewards)}")
    usage = trace.usage
    if usage.llm_call_count:
        cost = "" if usage.cost_usd is None else f"  ${usage.cost_usd:.4f}"
        out.print(f"{usage.prompt_tokens:,} tokens in, {usage.completion_tokens:,} out{cost}")
    if recorded["spans"]:
        out.print(f"{recorded['spans']} more beside the steps: hud trace {run['id']} --spans")
    if run["error"]:
        out.print(f"{run['failure_kind']}: {run['error']}", markup=False)


def _print_steps(trace: Any, full: bool, indent: str = "") -> None:
    """Print the steps of a trace, with nested traces indented."""
    from hud.cli.output import console

    out = console()
    for step in trace.steps:
        for label, text in _told(step):
            out.print(f"{indent}{step.step_id:>3} ", style="dim", end="")
            out.print(f"{label:<10}", style="bold", end="")
            out.print(text if full else _short(text), markup=False)
        nested = getattr(step, "subagent", None)
        if nested is not None:
            _print_steps(nested, full, f"{indent}    ")


def _told(step: Any) -> list[tuple[str, str]]:
    """Return a step as (source, text)."""
    import json

    from hud.agents.context_window import COMPACTION
    from hud.trace import AgentStep, SubagentStep, ToolStep

    lines: list[tuple[str, str]] = []
    if isinstance(step, AgentStep):
        lines += [("reasoning", step.reasoning)] if step.reasoning else []
        label = "summary" if COMPACTION in step.extra else "agent"
        lines += [(label, step.content)] if step.content else []
        lines += [("refusal", step.refusal)] if step.refusal else []
        for call in step.tool_calls:
            arguments = call.arguments
            shown = arguments if isinstance(arguments, str) else json.dumps(arguments)
            lines.append(("call", f"{call.name} {shown}"))
        lines += [
            ("source", f"{citation.source}  {citation.text}".rstrip())
            for citation in step.citations
        ]
    elif isinstance(step, ToolStep) and step.result is not None:
        lines.append(("error" if step.result.is_error else "result", _result(step.result)))
    elif isinstance(step, SubagentStep):
        lines.append(("subagent", _played(step)))
    elif step.source == "user":
        lines += [(message.role, message.text) for message in step.messages]
    elif step.task_call is not None:
        call = step.task_call
        score = f"  score {call.result.get('score')}" if isinstance(call.result, dict) else ""
        lines.append((call.phase, f"{call.name} {json.dumps(call.arguments, default=str)}{score}"))
    if step.error:
        lines.append(("error", step.error))
    return lines


def _played(step: Any) -> str:
    """Return a subagent's tool, model and reward, and the command for its run."""
    from hud.cli.output import number

    extra = step.extra
    model = f"  {extra['model']}" if extra.get("model") else ""
    recorded = getattr(step.subagent, "trace_id", None)
    where = f"  hud trace {recorded}" if recorded else ""
    return f"{extra.get('tool', 'nested')}{model}  reward {number(extra.get('reward'))}{where}"


def _result(result: Any) -> str:
    from hud.trace import ImageContent

    pictures = sum(isinstance(block, ImageContent) for block in result.content)
    shown = [result.text] if result.text else []
    if pictures:
        shown.append(f"[{pictures} picture{'s' * (pictures > 1)}]")
    return "\n".join(shown)


def _short(text: str) -> str:
    lines = text.splitlines() or [""]
    shown = [line if len(line) <= 200 else f"{line[:199]}…" for line in lines[:12]]
    if len(lines) > 12:
        shown.append(f"… {len(lines) - 12} lines more (--full)")
    return f"\n{' ' * 15}".join(shown)


def _grade_tree(subscores: list[dict[str, Any]], depth: int = 0) -> list[str]:
    lines = []
    for part in subscores:
        weight = "" if part.get("weight") is None else f"  weight {part['weight']:g}"
        lines.append(f"{'  ' * depth}    {part['name']}: {part['value']:.3f}{weight}")
        lines += _grade_tree(part.get("children") or [], depth + 1)
    return lines
