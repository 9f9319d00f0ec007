"""The memory plan of `hud plan --config FILE --gpu NAME`: each stage of a recipe, with its subagents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hud.cli.output import Column, row, wrapped
from hud.cli.training.memory_table import plan_of
from hud.engine.memory.model_shapes import GIB, Machine
from hud.errors import UsageError

if TYPE_CHECKING:
    from hud.train.config import SubagentConfig, TrainConfig
    from hud.train.planning.stage_memory import PlayedModel, StageMemory

COLUMNS = (
    Column("model", 26, right=False),
    Column("role", 8, right=False),
    Column("weights", 8),
    Column("states", 8),
    Column("cache", 8),
    Column("GiB", 8),
)


async def stages_of(path: Path, machine: Machine) -> list[StageMemory]:
    """Return the plans of a recipe's stages, or of a single training's settings. Raises `UsageError` as `hud train` does."""
    from hud.train.config import make_config, read_toml
    from hud.train.recipe import is_recipe, load_recipe

    if is_recipe(path):
        stages = [(stage.name, stage.config) for stage in load_recipe(path).stages]
    else:
        config = make_config(read_toml(path), str(path))
        stages = [(config.model, config)]
    memory = []
    played_as: dict[str, SubagentConfig] = {}
    for name, config in stages:
        memory.append(await _stage(name, config, machine, played_as))
        played_as[config.model] = config.player
    return memory


async def _stage(
    name: str,
    config: TrainConfig,
    machine: Machine,
    played_as: Mapping[str, SubagentConfig],
) -> StageMemory:
    """Return the plan of a stage: its policy, and the models of its tasks' subagents."""
    from hud.train.planning.stage_memory import PlayedModel, StageMemory
    from hud.train.rollouts.sampling import load_tasks
    from hud.train.rollouts.subagents import subagents_of

    tasks = load_tasks(None, config.tasks, "tasks")
    longest = {config.model: config.max_tokens}
    for subagent in subagents_of(config, tasks, played_as).values():
        longest.setdefault(subagent.model, subagent.max_tokens or config.max_tokens)
    models, elsewhere = [], []
    for model, tokens in longest.items():
        trained = model == config.model or model in config.joined
        try:
            plan = await plan_of(model, machine, longest=tokens)
        except UsageError as error:
            if trained:
                raise
            elsewhere.append(str(error))
            continue
        models.append(PlayedModel(model, trained, plan))
    return StageMemory(
        name, tuple(models), tuple(elsewhere), await _judge(config, len(list(tasks)))
    )


async def _judge(config: TrainConfig, tasks: int) -> str | None:
    """Return the most requests to the judge of a stage, as text; None without any."""
    from hud.client import connect
    from hud.review.judge_forms import open_judge

    if config.judge is None:
        return None
    judge = await open_judge(connect(), config.judge, by=config.judge_by, group=config.group)
    await judge.aclose()
    per_step = min(config.tasks_per_step, tasks)
    groups = config.model_copy(update={"tasks_per_step": per_step}).most_groups()
    return judge.forecast(config.group, groups)


def lines(stages: list[StageMemory], gpu: str) -> Iterator[str]:
    """Yield a table for each stage, and what to lower in one that does not fit."""
    for number, stage in enumerate(stages, start=1):
        if number > 1:
            yield ""
        yield f"Stage {number}/{len(stages)}: {stage.name}, on one {gpu}"
        yield row(COLUMNS, [column.name for column in COLUMNS])
        for played in stage.models:
            sizes = (
                played.weights,
                played.states,
                played.cache,
                played.weights + played.states + played.cache,
            )
            yield row(
                COLUMNS, [played.model, _role(played), *(f"{size / GIB:.2f}" for size in sizes)]
            )
        if stage.judge is not None:
            yield from wrapped(stage.judge, 0)
        for reason in stage.elsewhere:
            yield from wrapped(f"Not counted: {reason}", 0)
        for name, size in (
            ("activations and logits of the largest pass", stage.passing),
            ("left of 90% of the memory", stage.left),
        ):
            yield f"{name:<66}{size / GIB:>10.2f}"
        if stage.left < 0:
            sentence = f"Does not fit by {-stage.left / GIB:.2f} GiB. What needs less: {', '.join(stage.remedies)}."
            yield from wrapped(sentence, 0)


def as_data(stages: list[StageMemory], gpu: str) -> dict[str, Any]:
    """Return the plans as plain data, in bytes."""
    return {
        "gpu": gpu,
        "stages": [
            {
                "name": stage.name,
                "models": [
                    {
                        "model": played.model,
                        "role": _role(played),
                        "parameters": played.plan.parameters,
                        "weights": played.weights,
                        "states": played.states,
                        "cache": played.cache,
                    }
                    for played in stage.models
                ],
                "elsewhere": stage.elsewhere,
                "judge": stage.judge,
                "passing": stage.passing,
                "left": stage.left,
                "remedies": stage.remedies,
            }
            for stage in stages
        ],
    }


def _role(played: PlayedModel) -> str:
    return "trained" if played.trained else "frozen"
