"""Gain of a searched system prompt on a family with a hidden convention, and the null run of the search.

    python benchmarks/prompt_gains.py [--folder FOLDER]      two minutes on one core; goes on where it stopped

One tiny policy that follows instructions is forked for every seed and side. `conventions/reflector.py` proposes prompts: it stands in for a
provider's model, over HTTP, and computes its reply from the request. In the null run, rewards change places and graders' comments are left
out. A test set that no search saw judges each head. Writes prompt_gains.json beside this file, and its table into docs/optimize.md.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "perf"))

from records import circumstances
from sizes import size

from conventions.marked_words import make_policy, splits
from conventions.reflector import Server
from gain_tables import prompt_gains
from hud.agents.agent_forms import as_agent
from hud.agents.agent_kinds import SERVED
from hud.client import connect
from hud.train.promotion.checkpoint_comparison import compare
from hud.train.prompt_search.config import PromptSearchConfig
from hud.train.prompt_search.search import search_prompt
from hud.train.rollouts.runtimes import training_runtime
from rollouts_to_score import recorded, run_benchmark

PAGE = Path(__file__).resolve().parents[1] / "docs/optimize.md"
BASE = "writer"
SEEDS = range(size(5, 1))
SIDES = ("search", "null")
SETTINGS: dict[str, Any] = {
    "max_tokens": 12,
    "max_turns": 1,
    "budget": size("600rollouts", "60rollouts"),
}
TRAINED, HELD_OUT = size((20, 16), (4, 4))


async def searched(side: str, seed: int, url: str) -> dict[str, Any]:
    """Search a prompt with a fork of the base, and compare its head with its base on the test set."""
    name = f"{side}-{seed}"
    models = (await connect().get("/v2/models"))["items"]
    if all(model["model_name"] != name for model in models):
        await connect().post("/v2/models/fork", {"source_model_id": BASE, "name": name})
    tasks, held_out, test = splits(TRAINED, HELD_OUT)
    config = PromptSearchConfig(
        model=name, seed=seed, shuffle_rewards=side == "null", eval_group=size(5, 1), **SETTINGS
    )
    reflector = as_agent(SERVED, {"model": "stand-in", "base_url": url, "api_key": "none"})
    began = perf_counter()
    report = await search_prompt(config, tasks=tasks, held_out=held_out, reflector=reflector)
    seconds = perf_counter() - began
    playing = config.playing.model_copy(update={"seed": 1_000 + seed})
    runtime = training_runtime("local", list(test))
    test_set = await compare(playing, "base", "head", test, runtime=runtime)
    return {
        "side": side,
        "seed": seed,
        "prompt": report.prompt,
        "promoted": report.promoted,
        "held_out": report.judgement
        and {name: getattr(report.judgement, name) for name in ("gain", "low", "high")},
        "spent": report.spent,
        "seconds": round(seconds, 1),
        "test": {
            "before": test_set.first_score.mean,
            "after": test_set.second_score.mean,
            "gain": test_set.difference.mean,
            "low": test_set.difference.low,
            "high": test_set.difference.high,
        },
    }


async def measure(folder: Path) -> dict[str, Any]:
    """Return the record of all runs; a stopped measurement continues."""
    if not (folder / "taught").exists():
        await make_policy(BASE, folder, epochs=size(6, 1))
        (folder / "taught").touch()
    with Server() as server:
        runs = [
            await recorded(
                folder / f"{side}-{seed}.json", partial(searched, side, seed, server.url)
            )
            for seed, side in product(SEEDS, SIDES)
        ]
    at = datetime.now(UTC).isoformat(timespec="seconds")
    means = {
        side: fmean(run["test"]["gain"] for run in runs if run["side"] == side) for side in SIDES
    }
    return {**circumstances(), "at": at, "runs": runs, "mean_gain": means}


if __name__ == "__main__":
    run_benchmark("Gain of a searched prompt.", __file__, measure, prompt_gains, PAGE)
