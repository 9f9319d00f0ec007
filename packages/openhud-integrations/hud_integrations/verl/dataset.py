"""Tasks as the parquet file that verl's `RLHFDataset` reads: a row for each task, with its prompt and its reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hud.environment import Task
from hud.errors import RolloutError, UsageError
from hud.eval import Taskset
from hud.exchange.left_out import LeftOut
from hud_integrations.shared.event_loop import wait_for
from hud_integrations.shared.task_prompts import prompt_messages
from hud_integrations.shared.task_reference import reference_of

AGENT = "hud_agent"
"""Name of the agent loop, in rows and in the agent loop's YAML."""


def write_parquet(taskset: Taskset, output: Path) -> tuple[int, list[LeftOut]]:
    """Write the tasks' rows; returns their number, and the tasks that were left out.

    Raises `UsageError` without pyarrow, or if no task is left.
    """
    try:
        from pyarrow import Table, parquet
    except ModuleNotFoundError:
        raise UsageError("Writing parquet files needs pyarrow: pip install pyarrow.") from None
    rows: list[dict[str, Any]] = []
    left_out: list[LeftOut] = []
    for task in taskset:
        try:
            rows.append(row_of(task, taskset.name, len(rows)))
        except (RolloutError, UsageError) as error:
            left_out.append(
                LeftOut(task.slug, f"its prompt could not be made: {error}", is_task=True)
            )
    if not rows:
        raise UsageError(f"No task of {taskset.name!r} can be exported: {left_out[0].part if left_out else 'there is none'}.")  # fmt: skip
    parquet.write_table(Table.from_pylist(rows), output)
    return len(rows), left_out


def row_of(task: Task, name: str, index: int) -> dict[str, Any]:
    """Return a task's row; the task is started once for its prompt. Raises `UsageError` for an unbound task."""
    prompt = [
        {"role": message.role, "content": message.text}
        for message in wait_for(prompt_messages(task))
    ]
    return {
        "data_source": name,
        "prompt": prompt,
        "ability": "agent",
        # The run's own grade is the reward.
        "reward_model": {"style": "rule", "ground_truth": ""},
        "extra_info": {"index": index, "split": "train", "hud": reference_of(task)},
        "agent_name": AGENT,
    }
