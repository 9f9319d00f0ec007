"""Gains of GRPO with a pretrained model, SmolLM2-135M-Instruct, on tool-use families: held-out tasks name no item of training.

    python benchmarks/pretrained_gains.py branch      one family, in less than half an hour on two cores
    python benchmarks/pretrained_gains.py             all of `benchmarks/pretrained_families/`

1. An apprentice that knows the tools and has bad habits plays the training tasks twice each.
2. An adapter of the pretrained model learns to imitate it: the base.
3. GRPO trains the base; the null run does the same with advantages shuffled within each group, on seeds of its own.
4. Base, null run and trained policy play the held-out tasks, `GROUP` times each, by sampling at temperature 1.

Updates pretrained_gains.json beside this file with the family's record, and the table of docs/gains.md. The model's download stays in
HUD_HOME.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import resource
import shutil
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "perf"))
sys.path.insert(0, str(Path(__file__).resolve().parent / "pretrained_families"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "depot"))

import demo
from records import circumstances
from sizes import SMALLEST, size

from gain_tables import PAGE
from gain_tables import pretrained as table
from gains import Comparison, rounded
from hud import Taskset, settings
from hud.client import connect
from hud.engine.model_files.named_models import NAMED_MODELS, fetch
from hud.eval import Job
from hud.train.supervised.supervised_run import warm_up
from page_tables import write_table

RECORDS = Path(__file__).with_suffix(".json")
FAMILIES = ("branch", "relay")
GROUP = 2
"""Runs of each held-out task."""
TRAIN, HELD_OUT = size((None, None), (2, 2))
"""Tasks of each split; None: all."""
IMITATED = size(2, 1)
"""Runs of the apprentice of each training task."""
GRPO: dict[str, Any] = {
    **demo.GRPO,
    "steps": size(14, 1),
    "group": size(demo.GRPO["group"], 2),
    "eval_group": GROUP,
}
"""The settings of `make demo`; a family has its own `max_turns`."""


async def measure(name: str, seed: int) -> dict[str, Any]:
    """Return the record of one family: rewards of every policy on the held-out tasks, by task."""
    family, started = importlib.import_module(name), perf_counter()
    tasks = Taskset("train", list(family.train)[:TRAIN])
    held_out = Taskset("held-out", list(family.held_out)[:HELD_OUT])
    client = connect()
    await client.post("/v2/models/add", {"source": demo.BASE, "name": demo.BASE})
    fork = {"source_model_id": demo.BASE, "name": name, "config": demo.ADAPTER}
    await client.post("/v2/models/fork", fork)
    job = await Job.start("apprentice", group=IMITATED)
    await tasks.run(family.apprentice(seed), job=job)
    await job.finish()
    taught = await warm_up(name, job.runs, seed=seed, **demo.WARM_UP)
    print(f"{name}: apprentice {job.reward:.3f}, loss {taught.last_loss:.3f}", flush=True)
    training = {**GRPO, **family.training}
    comparison = Comparison(
        name, taught.head or "base", training, tasks, held_out, seed, lines_every=1
    )
    rewards = await comparison.rewards()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "null": "shuffled",
        "seed": seed,
        "steps": training["steps"],
        "rollouts": comparison.rollouts,
        "apprentice": round(job.reward or 0.0, 4),
        "minutes": round((perf_counter() - started) / 60, 1),
        "cpu_minutes": round((usage.ru_utime + usage.ru_stime) / 60, 1),
        "peak_memory_gib": round(usage.ru_maxrss / 2**20, 2),
        **circumstances(),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "rewards": rounded(rewards),
    }


def main() -> None:
    """Read the command line, measure, record, and print the table."""
    parser = argparse.ArgumentParser(description="Gains of GRPO with a pretrained model.")
    parser.add_argument("names", nargs="*", metavar="FAMILY")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--records", type=Path, default=RECORDS, help="JSON of the records")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in FAMILIES]:
        parser.error(f"there is no family {unknown[0]}, but there are {', '.join(FAMILIES)}")
    os.environ.pop("HUD_API_URL", None)
    lasting = settings.load().home
    fetch(NAMED_MODELS[demo.BASE], lasting)
    file: Path = options.records
    records: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    for name in options.names or FAMILIES:
        # A store of its own, which is deleted: a family leaves its record, and nothing else.
        home = tempfile.mkdtemp(prefix="gains-")
        os.environ["HUD_HOME"] = home
        (Path(home) / "cache").symlink_to(lasting / "cache")
        try:
            records[name] = asyncio.run(measure(name, options.seed))
        finally:
            shutil.rmtree(home, ignore_errors=True)
        file.write_text(json.dumps(records, separators=(",", ":"), sort_keys=True) + "\n")
    print(table(records))
    if options.records == RECORDS and not SMALLEST:
        write_table(PAGE, table(records))


if __name__ == "__main__":
    main()
