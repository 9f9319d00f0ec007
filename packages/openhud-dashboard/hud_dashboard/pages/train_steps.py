"""Pages of a training run's steps, and of one step with samples of its rollouts."""

from __future__ import annotations

from statistics import fmean, pstdev
from typing import Any

from hud.errors import NotFoundError
from hud.train.monitoring.loss_metrics import loss_per_token
from hud_dashboard.page import Data, Offset, Pages, paged
from hud_platform.dependencies import Models, StorePart, Team
from hud_platform.models.registry import Registry
from hud_platform.search.run_words import texts_of
from hud_platform.store import Store
from hud_platform.store.task_labels import NO_TASK, task_labels
from hud_platform.training.runs import TrainingRuns
from hud_platform.training.training_jobs import TrainingJobs

router = Pages()
STEPS_PER_PAGE = 100
GROUPS_PER_PAGE = 12
LONGEST_SAMPLE = 600
"""Maximum length of a prompt or an answer; the transcript has the full text."""


@router.page("/train/{run_id}/steps", "train_steps.html")
def steps(registry: Models, store: StorePart, team: Team, run_id: str, offset: Offset = 0) -> Data:
    """The finished steps, newest first."""
    row = TrainingRuns(store, team).get(run_id)
    history = TrainingRuns(store, team).steps(row["id"])[::-1]
    return {
        "run": _run(registry, row),
        "items": step_rows(history[offset : offset + STEPS_PER_PAGE]),
        **paged(len(history), STEPS_PER_PAGE, offset),
    }


@router.page("/train/{run_id}/steps/{number}", "train_step.html")
def step(
    registry: Models,
    store: StorePart,
    team: Team,
    run_id: str,
    number: int,
    offset: Offset = 0,
) -> Data:
    """One step, counted from 1: its groups, the best and the worst rollout of each, and its metrics."""
    runs = TrainingRuns(store, team)
    row = runs.get(run_id)
    shown = _run(registry, row)
    history = {row["step"] + 1: row["metrics"] for row in runs.steps(row["id"])}
    if number not in history:
        raise NotFoundError(
            f"Step {number} of this run has not finished; finished steps: {len(history)}."
        )
    rollouts = TrainingJobs(store, team).of_step(row, number - 1)
    groups = _groups(rollouts)
    _add_samples(store, groups[offset : offset + GROUPS_PER_PAGE])
    labels = task_labels(
        store, team, {group["slug"]: group["runs"][0]["trace_id"] for group in groups}
    )
    return {
        "run": shown,
        "number": number,
        "row": step_rows([{"step": number - 1, "metrics": history[number]}])[0],
        "metrics": dict(sorted(history[number].items())),
        "before": number - 1 if number - 1 in history else None,
        "after": number + 1 if number + 1 in history else None,
        "rollouts": len(rollouts),
        "groups": [
            {**group, "label": labels[group["slug"]]}
            for group in groups[offset : offset + GROUPS_PER_PAGE]
        ],
        **paged(len(groups), GROUPS_PER_PAGE, offset),
    }


def step_rows(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return steps (`step` from 0, `metrics`) as rows of a table, numbered from 1. `epoch` is None but for supervised steps,
    whose tokens are those that are learned, not sampled."""
    return [
        {
            "number": row["step"] + 1,
            "reward": row["metrics"].get("rollout_reward:mean"),
            "groups": row["metrics"].get("groups_drawn:sum"),
            "flat": row["metrics"].get("groups_without_spread:sum"),
            "epoch": (epoch := row["metrics"].get("epoch")),
            "loss": loss_per_token(row["metrics"]),
            "tokens": row["metrics"].get(
                "sampled_tokens:sum" if epoch is None else "action_tokens:sum"
            ),
            "gradient": row["metrics"].get("grad_norm:mean"),
            "seconds": row["metrics"].get("seconds:sum"),
        }
        for row in history
    ]


def _run(registry: Registry, row: dict[str, Any]) -> dict[str, Any]:
    model = registry.model(row["model_id"])
    return {
        "id": row["id"],
        "model": model.slug,
        "tasks": row["config"].get("tasks") or "",
        "steps": int(row["config"].get("steps") or 0),
    }


def _groups(rollouts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    by_group: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in rollouts:
        key = (run["slug"] or NO_TASK, run["group_id"] or run["trace_id"])
        by_group.setdefault(key, []).append(run)
    groups = []
    for (slug, _), runs in by_group.items():
        rewards = [run["reward"] for run in runs if run["reward"] is not None]
        runs.sort(key=lambda run: run["attempt"])
        groups.append(
            {
                "slug": slug,
                "reward": fmean(rewards) if rewards else None,
                "spread": pstdev(rewards) if len(rewards) > 1 else None,
                "runs": runs,
                "prompt": None,
                "samples": [],
            }
        )
    return groups


def _add_samples(store: Store, groups: list[dict[str, Any]]) -> None:
    """Add to each group its prompt, and the answers of its best and its worst rollout."""
    for group in groups:
        measured = [run for run in group["runs"] if run["reward"] is not None]
        ends = sorted(measured, key=lambda run: -run["reward"])
        shown = ends if len(ends) < 2 else [ends[0], ends[-1]]
        if group["spread"] == 0:
            shown = shown[:1]
        group["samples"] = [{"trace_id": run["trace_id"], "reward": run["reward"]} for run in shown]
    wanted = [sample["trace_id"] for group in groups for sample in group["samples"]]
    with store.read() as connection:
        texts = texts_of(connection, wanted)
    for group in groups:
        contents = {run["trace_id"]: run.pop("content") for run in group["runs"]}
        for sample in group["samples"]:
            of_run = texts[sample["trace_id"]]
            group["prompt"] = group["prompt"] or "\n".join(of_run.get("prompt", ()))
            sample["answer"] = "\n".join(of_run.get("answer", ())) or contents[sample["trace_id"]]
