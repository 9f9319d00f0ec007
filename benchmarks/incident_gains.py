"""Flat against hierarchical on incidents, trained from small random models; a reduced form of the incident lab.

    python benchmarks/incident_gains.py        less than an hour on two cores

The lab's incidents (docs/incident-lab.md: 109 tools, records of 50 KiB) are beyond policies of a million parameters. These are
the demo's (examples/triage): six services, seven causes, seven tools, made from seeds. One policy has all tools, or a lead has a
tracer and a prober, who are trained first, each on tasks of its own, and frozen while the lead learns. Every policy first imitates
an apprentice with the same bad habits; both sides take `STEPS` optimizer steps in all. The null runs do the same with advantages
shuffled within each group, on seeds of their own. Writes incidents.json beside this file, and its table into docs/gains.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "triage"))
sys.path.insert(0, str(Path(__file__).resolve().parent / "perf"))

import env as flat_desk
import scripted
import team
import team_scripted
from records import circumstances
from sizes import size

from gain_tables import PAGE, shown
from gain_tables import incidents as table
from gains import NULL_SEED, SPOKEN_RUNS, Lines, head, rollouts_of
from hud import Task, Taskset
from hud.agents import Agent
from hud.client import connect
from hud.eval import Job
from hud.eval.results.paired_differences import Rewards, rewards_by_attempt
from hud.exchange.supervision import conversation_of
from hud.train.config import SubagentConfig, TrainConfig
from hud.train.loop import train
from hud.train.promotion.checkpoint_comparison import play
from hud.train.supervised.corpus import texts_of_messages
from hud.train.supervised.supervised_run import warm_up
from page_tables import write_table

RECORD = Path(__file__).with_name("incidents.json")
TRAIN, HELD_OUT = size((1400, 140), (8, 2))
GROUP = 2
"""Runs of each held-out incident."""
SIZES = {"vocab_size": 1024, "hidden": 128, "layers": 3}
STEPS = size(24, 3)
ORDER = ("tracer", "prober", "lead")
"""Subagents first; each takes a third of the steps."""
SIDES = {"flat": ("flat",), "hierarchical": ORDER}
"""Policies of each side, in the order in which they are trained; the last one is measured."""
SUBAGENTS = {"ask_tracer": "tracer", "ask_prober": "prober"}
GRPO: dict[str, Any] = {
    "group": 8,
    "tasks_per_step": 8,
    "lr": 1e-3,
    "warmup_steps": 2,
    "loss_config": {"token_mean": 1.0},
    "max_grad_norm": 1.0,
    "max_tokens": 40,
    "eval_group": GROUP,
    "keep": 1,
}


def incidents(policy: str, *, held_out: bool) -> Taskset:
    """Return a policy's tasks of one split."""
    makers = {
        "flat": lambda seed: flat_desk.diagnose(seed=seed, held_out=held_out),
        "tracer": lambda seed: team.traced(seed, held_out),
        "prober": lambda seed: team.probed(seed, held_out),
        "lead": lambda seed: team.diagnose(seed=seed, held_out=held_out),
    }

    def task(seed: int) -> Task:
        return makers[policy](seed).model_copy(update={"slug": f"incident-{seed:04d}"})

    return Taskset(policy, [task(seed) for seed in range(HELD_OUT if held_out else TRAIN)])


async def make_base(policy: str, apprentice: Agent, seed: int) -> None:
    """Make a model that imitates an apprentice, `POLICY-base`, and its forks `POLICY` and `POLICY-null`."""
    job = await Job.start(f"apprentice {policy}")
    await incidents(policy, held_out=False).run(apprentice, job=job)
    await job.finish()
    spoken = [conversation_of(run.trace) for run in job.runs[:SPOKEN_RUNS]]
    texts = [text for messages in spoken for text in texts_of_messages(messages)]
    base, client = f"{policy}-base", connect()
    body = {"name": base, "texts": texts, "seed": seed, "sizes": SIZES}
    await client.post("/v2/models/create", body)
    taught = await warm_up(base, job.runs, seed=seed, batch=4, lr=2e-3)
    print(f"{policy}: apprentice {job.reward:.3f}, loss {taught.last_loss:.3f}", flush=True)
    for name in (policy, f"{policy}-null"):
        await client.post("/v2/models/fork", {"source_model_id": base, "name": name})


def config_of(policy: str, form: str, seed: int) -> TrainConfig:
    """Return the configuration of a policy in one form: `-base`, `-null` or the trained one, ''."""
    tools = SUBAGENTS if policy == "lead" else {}
    return TrainConfig(
        model=policy + form,
        steps=STEPS if policy == "flat" else STEPS // len(ORDER),
        shuffle_advantages=form == "-null",
        seed=seed + NULL_SEED if form == "-null" else seed,
        subagents={tool: SubagentConfig(model=model + form) for tool, model in tools.items()},
        **GRPO,
    )


async def measure(side: str, seed: int) -> dict[str, Any]:
    """Return rollouts and rewards on the held-out incidents of one side, by model."""
    apprentices = {"flat": scripted.apprentice(seed), **team_scripted.apprentices(seed)}
    for policy in SIDES[side]:
        await make_base(policy, apprentices[policy], seed)
    played: dict[str, int] = {}
    rewards: dict[str, Rewards] = {}
    top = SIDES[side][-1]
    for form in ("-base", "", "-null"):
        for policy in SIDES[side] if form != "-base" else ():
            print(f"{policy}{form}", flush=True)
            config = config_of(policy, form, seed)
            report = await train(config, tasks=incidents(policy, held_out=False), reporter=Lines())
            played[config.model] = rollouts_of(report, config.group)
        config = config_of(top, form, seed)
        job = await play(config, await head(config.model), incidents(top, held_out=True))
        rewards[config.model] = rewards_by_attempt(job.runs)
        print(f"{config.model}: {shown(rewards[config.model])}", flush=True)
    return {
        "rollouts": played,
        "rewards": {
            name: {slug: [round(one or 0.0, 4) for one in earned] for slug, earned in found.items()}
            for name, found in rewards.items()
        },
    }


def measured_alone(side: str, seed: int) -> dict[str, Any]:
    """Measure one side in a store of its own, which is deleted: a measurement leaves its record, and nothing else."""
    os.environ.pop("HUD_API_URL", None)
    home = os.environ["HUD_HOME"] = tempfile.mkdtemp(prefix="incidents-")
    try:
        return asyncio.run(measure(side, seed))
    finally:
        shutil.rmtree(home, ignore_errors=True)


def main() -> None:
    """Read the command line, measure both sides at the same time, record, and print the table."""
    parser = argparse.ArgumentParser(description="Flat against hierarchical, before and after.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, default=RECORD)
    options = parser.parse_args()
    started = perf_counter()
    os.environ["OMP_NUM_THREADS"] = "1"  # A core for each side.
    with ProcessPoolExecutor(len(SIDES), mp_context=get_context("spawn")) as pool:
        sides = list(pool.map(measured_alone, SIDES, [options.seed] * len(SIDES)))
    record = {
        "null": "shuffled",
        "seed": options.seed,
        "steps": STEPS,
        "minutes": round((perf_counter() - started) / 60, 1),
        **circumstances(),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        **{
            part: {model: one for side in sides for model, one in side[part].items()}
            for part in ("rollouts", "rewards")
        },
    }
    options.record.write_text(json.dumps(record, separators=(",", ":"), sort_keys=True) + "\n")
    print(table(record))
    if options.record == RECORD:
        write_table(PAGE, table(record))


if __name__ == "__main__":
    main()
