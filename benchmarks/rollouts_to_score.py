"""Measurement that the benchmarks of this kind share: rollouts until a held-out score, by runs that are recorded one by one."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from sizes import SMALLEST

from gain_tables import PAGE
from hud import Taskset
from hud.client import connect
from hud.eval import StopSignal
from hud.eval.results.held_out_scores import Score
from hud.train.config import TrainConfig
from hud.train.loop import TrainReport, train
from hud.train.monitoring.progress import Reporter
from page_tables import write_table


class UntilTarget(Reporter):
    """Requests a training run's stop at a held-out score."""

    def __init__(self, target: float) -> None:
        self.stop, self.target = StopSignal(), target

    def scored(self, score: Score) -> None:
        if score.mean >= self.target:
            self.stop.request()


async def train_fork(
    base: str, config: TrainConfig, target: float, tasks: Taskset, held_out: Taskset
) -> TrainReport:
    """Train a fork of `base`, made unless it is there, until `target` or the last step."""
    client = connect()
    models = (await client.get("/v2/models"))["items"]
    if all(model["model_name"] != config.model for model in models):
        await client.post("/v2/models/fork", {"source_model_id": base, "name": config.model})
    until = UntilTarget(target)
    return await train(config, tasks=tasks, held_out=held_out, reporter=until, stop=until.stop)


def groups_of(report: TrainReport) -> list[int]:
    """Return the number of groups that each step drew."""
    return [int(row["metrics"]["groups_drawn:sum"]) for row in report.history]


def steps_to(report: TrainReport, target: float) -> int | None:
    """Return the steps before the first score at the target; None without one."""
    return next((score.step for score in report.scores if score.mean >= target), None)


def held_out_scores(report: TrainReport) -> list[list[float]]:
    """Return the held-out scores, each with its step."""
    return [[score.step, round(score.mean, 4)] for score in report.scores]


async def recorded(file: Path, play: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
    """Return the record of a run: of its file, or played and written there. A stopped measurement continues so."""
    record = _read(file)
    if record is None:
        record = await play()
        _write(file, record)
    print(json.dumps(record), flush=True)
    return record


def _read(file: Path) -> dict[str, Any] | None:
    if not file.exists():
        return None
    record: dict[str, Any] = json.loads(file.read_text())
    return record


def _write(file: Path, record: dict[str, Any]) -> None:
    file.write_text(json.dumps(record) + "\n")


def run_benchmark(
    description: str,
    script: str,
    measure: Callable[[Path], Coroutine[Any, Any, dict[str, Any]]],
    table: Callable[[dict[str, Any]], str],
    page: Path = PAGE,
) -> None:
    """Read the command line, measure, write the record beside the script, and its table into a page."""
    name = Path(script).stem.replace("_", "-")
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--folder", type=Path, default=Path(f".{name}"))
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["HUD_HOME"] = str((folder / "home").resolve())
    os.environ.pop("HUD_API_URL", None)
    record = asyncio.run(measure(folder))
    if SMALLEST:
        return
    print(table(record))
    Path(script).with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    write_table(page, table(record))
