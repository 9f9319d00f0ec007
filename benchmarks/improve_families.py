"""`hud improve` on three families: two with a true gain, one without, judged on test sets that the command never saw.

    python benchmarks/improve_families.py [--folder FOLDER]      ten minutes on two busy cores; goes on where it stopped

`words` has a hidden convention that graders' comments reveal, `paths` needs practice, and the reward of `coins` is a coin. All three are
improved with the same settings and the stand-in reflector of `conventions/reflector.py`. Writes improve_families.json beside this file,
and its table into docs/improve.md.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from functools import partial
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "perf"))

from records import circumstances
from sizes import size

from conventions import marked_words, signed_paths
from conventions.reflector import Server
from gain_tables import improved_families
from hud import Taskset
from hud.agents.agent_forms import as_agent
from hud.agents.agent_kinds import SERVED
from hud.client import connect
from hud.train.improvement.config import ImproveConfig
from hud.train.improvement.ladder import improve
from hud.train.promotion.checkpoint_comparison import compare
from hud.train.rollouts.runtimes import training_runtime
from rollouts_to_score import recorded, run_benchmark

PAGE = Path(__file__).resolve().parents[1] / "docs/improve.md"
FAMILIES = {"words": "writer", "paths": "walker", "coins": "walker"}
"""Policy of each family."""
SEEDS = range(size(2, 1))
BUDGET = size("4000rollouts", "400rollouts")
SETTINGS: dict[str, Any] = {
    "max_turns": 1,
    "max_tokens": 12,
    "measured_tasks": size(24, 4),
    "eval_group": size(3, 1),
    "steps_at_once": size(8, 1),
    "lr": 5e-4,
}


def splits(family: str) -> tuple[Taskset, ...]:
    """Return the family's training tasks, held-out ones, and its test set."""
    if family == "words":
        return marked_words.splits(*size((20, 20), (4, 6)))
    template = signed_paths.paths if family == "paths" else signed_paths.coins
    return signed_paths.splits(template, *size((64, 40, 60), (4, 6, 2)))


async def improved(family: str, seed: int, url: str) -> dict[str, Any]:
    """Improve a fork of the family's policy, and compare its head with its base on the test set."""
    name = f"{family}-{seed}"
    models = (await connect().get("/v2/models"))["items"]
    if all(model["model_name"] != name for model in models):
        body = {"source_model_id": FAMILIES[family], "name": name}
        await connect().post("/v2/models/fork", body)
    tasks, held_out, test = splits(family)
    config = ImproveConfig(model=name, budget=BUDGET, seed=seed, reflector="stand-in", **SETTINGS)
    settings = {"model": "stand-in", "base_url": url, "api_key": "none"}
    began = perf_counter()
    report = await improve(
        config, tasks=tasks, held_out=held_out, reflector=as_agent(SERVED, settings)
    )
    seconds = perf_counter() - began
    playing = config.playing(name).model_copy(update={"seed": 1_000 + seed})
    runtime = training_runtime("local", list(test))
    tested = await compare(playing, "base", "head", test, runtime=runtime)
    return {
        "family": family,
        "seed": seed,
        "rungs": [
            {
                "name": rung.name,
                "outcome": rung.outcome,
                "steps": rung.steps,
                "reason": rung.reason,
                "gain": rung.judgement
                and [rung.judgement.gain, rung.judgement.low, rung.judgement.high],
                "rollouts": rung.spent["rollouts"],
            }
            for rung in report.rungs
        ],
        "verdict": report.verdict,
        "spent": report.spent,
        "budget": report.budget,
        "seconds": round(seconds, 1),
        "test": {
            "before": tested.first_score.mean,
            "after": tested.second_score.mean,
            "gain": tested.difference.mean,
            "low": tested.difference.low,
            "high": tested.difference.high,
        },
    }


async def measure(folder: Path) -> dict[str, Any]:
    """Return the record of all runs; a stopped measurement continues."""
    if not (folder / "taught").exists():
        await marked_words.make_policy("writer", folder, epochs=size(6, 1))
        await signed_paths.make_walker("walker", folder, epochs=size(3, 1))
        (folder / "taught").touch()
    with Server() as server:
        runs = [
            await recorded(
                folder / f"{family}-{seed}.json", partial(improved, family, seed, server.url)
            )
            for seed, family in product(SEEDS, FAMILIES)
        ]
    at = datetime.now(UTC).isoformat(timespec="seconds")
    return {**circumstances(), "at": at, "runs": runs}


if __name__ == "__main__":
    run_benchmark("hud improve on three families.", __file__, measure, improved_families, PAGE)
