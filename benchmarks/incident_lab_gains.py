"""Gains of a pretrained model, SmolLM2-135M-Instruct, on the incident lab: incidents that were recorded apart are held out.

    python benchmarks/incident_lab_gains.py        about two hours on two cores that do nothing else, estimated from CPU time
    python benchmarks/incident_lab_gains.py --folder .gains      goes on where it was stopped

1. The 24 incidents that ship are varied: what happened stays, every identifier is another.
2. An apprentice, the lab's oracle with bad habits, investigates each variant once; the oracle does, too.
3. An adapter of the pretrained model learns to imitate the apprentice, then half of the oracle's runs: the base.
4. GRPO trains the base; the null run does the same with advantages shuffled within each group, on seeds of its own.
5. Base, trained policy and null run investigate the 24 held-out incidents of incident_lab_held_out/, `GROUP` times each.

Writes incident_lab_gains.json beside this file, and its table into docs/incident-lab.md.
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
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "perf"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "depot"))

import demo
from records import circumstances
from sizes import SMALLEST, size

from gain_tables import LAB_PAGE
from gain_tables import incident_lab as table
from gains import Comparison, fork, rounded
from hud import settings
from hud.client import connect
from hud.engine.model_files.named_models import NAMED_MODELS, fetch
from hud.eval import Job
from hud.train.supervised.supervised_run import warm_up as learn
from hud_benchmarks.incident_lab import players
from incident_variants import write_incidents
from page_tables import write_table

RECORD = Path(__file__).with_suffix(".json")
HELD_OUT = Path(__file__).with_name("incident_lab_held_out")
GROUP = 4
"""Runs of each held-out incident."""
VARIANTS, LIMIT = size((6, None), (1, 2))
"""Variants of each incident to train on; incidents of each split, None: all."""
BASE = "incident-lab"
POLICIES = ("base", "trained", "null")
WARM_UPS: dict[str, tuple[int, dict[str, Any]]] = {
    "apprentice": (1, {"epochs": 1, "batch": 8, "lr": 1e-3}),
    "oracle": (2, {"epochs": 1, "batch": 4, "lr": 1e-3}),
}
"""By teacher: that every first or every second of its runs is imitated, and how. After the apprentice alone, a policy samples
so many odd tokens that it solves nothing, and no group has a signal."""
GRPO: dict[str, Any] = {
    **demo.GRPO,
    "group": size(8, 2),
    "max_tokens": 64,
    "max_turns": size(12, 3),
    "eval_temperature": 0.7,
    "eval_group": GROUP,
}
"""The settings of `make demo`, but for the rate. Held-out runs are colder: a call has dozens of tokens, and an odd one spoils it. In
training at this temperature most groups would have no signal: after the oracle's runs the policy is sure of itself."""
STAGES: tuple[dict[str, Any], ...] = (
    {"steps": size(24, 1), "lr": 2e-4},
    # At this rate ten steps gain more than the 24 before them, and 25 lose it all.
    {"steps": size(10, 1), "lr": 4e-4, "lr_floor": 0.87},
)
"""Trainings after one another; the second begins from the first one's weights, with an optimizer of its own."""


@contextmanager
def lab_folder(kept: Path | None, seed: int) -> Iterator[Path]:
    """Yield a folder with the incidents and a store that has the pretrained model, for this process; remove it unless it is kept."""
    os.environ.pop("HUD_API_URL", None)
    lasting = settings.load().home
    fetch(NAMED_MODELS[demo.BASE], lasting)
    folder = kept or Path(tempfile.mkdtemp(prefix="incident-lab-"))
    os.environ["HUD_HOME"] = str(folder / "home")
    os.environ["INCIDENT_LAB"] = str(folder / "incidents")
    try:
        if not (folder / "home").exists():
            write_incidents(HELD_OUT, folder / "incidents", VARIANTS, LIMIT, seed)
            (folder / "home").mkdir()
            (folder / "home" / "cache").symlink_to((lasting / "cache").resolve())
            added = connect().post("/v2/models/add", {"source": demo.BASE, "name": demo.BASE})
            asyncio.run(added)
        yield folder
    finally:
        if kept is None:
            shutil.rmtree(folder, ignore_errors=True)


def write(file: Path, record: dict[str, Any]) -> None:
    """Write a record."""
    file.write_text(json.dumps(record, separators=(",", ":"), sort_keys=True) + "\n")


async def make_base(seed: int) -> tuple[float, str]:
    """Make and warm up the base; returns the apprentice's mean reward, and the base's checkpoint."""
    incidents = importlib.import_module("incident_policies")
    await fork(demo.BASE, BASE, config=demo.ADAPTER)
    apprentice = 0.0
    for teacher, (every, warm_up) in WARM_UPS.items():
        agent = incidents.apprentice(seed) if teacher == "apprentice" else players.oracle
        job = await Job.start(teacher)
        await incidents.tasks(held_out=False).run(agent, job=job)
        await job.finish()
        apprentice = apprentice or job.reward or 0.0
        taught = await learn(BASE, job.runs[::every], seed=seed, fresh=True, **warm_up)
        print(
            f"{teacher} {job.reward:.3f}, {taught.steps} steps, loss {taught.last_loss:.3f}",
            flush=True,
        )
    return apprentice, taught.head or "base"


async def measure(record: dict[str, Any], file: Path, policies: list[str]) -> None:
    """Measure the policies that the record lacks, and write it after each."""
    incidents, seed = importlib.import_module("incident_policies"), record["seed"]
    started, used = perf_counter(), process_time()

    def finish(phase: str) -> None:
        nonlocal started, used
        record["minutes"][phase] = round((perf_counter() - started) / 60, 1)
        record["cpu_minutes"][phase] = round((process_time() - used) / 60, 1)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        record["peak_memory_gib"] = max(round(peak, 2), record.get("peak_memory_gib", 0.0))
        record["steps"] = sum(stage["steps"] for stage in STAGES)
        record.update(circumstances(), at=datetime.now(UTC).isoformat(timespec="seconds"))
        write(file, record)
        started, used = perf_counter(), process_time()

    if "head" not in record:
        apprentice, record["head"] = await make_base(seed)
        record["apprentice"] = round(apprentice, 4)
        finish("warm-up")
    splits = [incidents.tasks(held_out=held_out) for held_out in (False, True)]
    comparison = Comparison(BASE, record["head"], GRPO, *splits, seed, lines_every=1, stages=STAGES)
    for policy in policies:
        if policy in record["rewards"]:
            continue
        if policy == "base":
            rewards = await comparison.base_rewards()
        else:
            rewards = await comparison.trained_rewards(null=policy == "null")
            record["rollouts"] = comparison.rollouts
        record["rewards"] |= rounded({policy: rewards})
        finish(policy)


def main() -> None:
    """Read the command line, measure, record, and print the table."""
    parser = argparse.ArgumentParser(description="Gains of GRPO on the incident lab.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, default=RECORD)
    parser.add_argument("--folder", type=Path, help="store to keep, and to go on from")
    parser.add_argument("--policies", default=",".join(POLICIES), help="those to measure, in order")
    options = parser.parse_args()
    with lab_folder(options.folder, options.seed) as folder:
        draft = folder / "record.json"
        if draft.exists():
            record = json.loads(draft.read_text())
        else:
            record = {"null": "shuffled", "seed": options.seed}
            record |= {"rewards": {}, "minutes": {}, "cpu_minutes": {}}
        policies = [name for name in options.policies.split(",") if name]
        asyncio.run(measure(record, draft, policies))
        shutil.copy(draft, options.record)
    print(table(record))
    if options.record == RECORD and not SMALLEST:
        write_table(LAB_PAGE, table(record))


if __name__ == "__main__":
    main()
