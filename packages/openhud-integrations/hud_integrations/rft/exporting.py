"""Export of tasks to RFT: `train.jsonl`, a line for each task, and `grader.json`, the one grader of them all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hud import exact_json
from hud.environment import Task
from hud.errors import RolloutError, UsageError
from hud.eval import Taskset
from hud.exchange.left_out import LeftOut
from hud.trace import Message
from hud_integrations.rft.grader_source import python_grader
from hud_integrations.rft.grading_rule import Rule, rule_of
from hud_integrations.shared.event_loop import wait_for
from hud_integrations.shared.task_prompts import beyond_answers, environment_of


def export_tasks(taskset: Taskset, output: Path) -> tuple[int, list[LeftOut]]:
    """Write the tasks whose graders have a rule into the new folder `output`; returns their number, and the others.

    Each task is started once for its prompt, and not graded. Raises `UsageError` if no task has a rule.
    """
    rows: list[dict[str, Any]] = []
    left_out: list[LeftOut] = []
    for slug, task in taskset.items():
        try:
            rows.append(wait_for(_row(task)))
        except (RolloutError, UsageError) as error:
            left_out.append(LeftOut(slug, str(error), is_task=True))
    if not rows:
        reasons = "; ".join(sorted({omission.part for omission in left_out})) or "there is none"
        raise UsageError(f"No task of {taskset.name!r} can be graded by RFT: {reasons}.")
    output.mkdir(parents=True)
    lines = [exact_json.dumps(row, option=exact_json.OPT_APPEND_NEWLINE) for row in rows]
    (output / "train.jsonl").write_bytes(b"".join(lines))
    grader = grader_of([row["hud"] for row in rows])
    (output / "grader.json").write_bytes(exact_json.dumps(grader, option=exact_json.OPT_INDENT_2))
    return len(rows), left_out


def grader_of(rules: list[Rule]) -> dict[str, Any]:
    """Return the grader of these rules: a check of strings where all are the same plain one, else python."""
    if all(map(_is_equality, rules)):
        return {
            "type": "string_check",
            "name": "openhud",
            "input": "{{sample.output_text}}",
            "reference": "{{item.expected}}",
            "operation": "eq",
        }
    return python_grader()


async def _row(task: Task) -> dict[str, Any]:
    """Return a task's line. Raises `UsageError` with the reason why it has none."""
    environment = environment_of(task)
    problem = beyond_answers(environment)
    if problem is None and task.verifier is not None:
        problem = "it has a verifier task"
    if problem is None and environment.templates[task.id].returns is not None:
        problem = "its answers have a type"
    if problem is not None:
        raise UsageError(problem)
    async with environment.run() as run:
        frame = await run.start(task.id, task.args)
        episode: Any = run.episode
        rule = rule_of(environment.templates[task.id].function, episode.ag_frame)
        await run.cancel()
    prompt = [Message(content=frame.prompt)] if isinstance(frame.prompt, str) else frame.prompt
    if prompt[-1].role != "user":
        raise UsageError("its prompt does not end with a message of the user")
    messages = [{"role": message.role, "content": message.text} for message in prompt]
    row = {"messages": messages, "task": task.slug, "hud": rule}
    return row | ({"expected": rule["arguments"][0]} if _is_equality(rule) else {})


def _is_equality(rule: Rule) -> bool:
    return rule.get("grader") == "exact_match" and rule["options"] == {"normalize_text": False}
