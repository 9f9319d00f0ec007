"""Gains of GRPO on reasoning-gym, which was not made for it: a small random model, warmed up, then trained, on held-out tasks.

    python benchmarks/gains.py reasoning-gym/aiw      one family, in minutes on two cores
    python benchmarks/gains.py                        all of `FAMILIES`, in less than an hour

1. A teacher that knows the form of an answer, and the answer to a share of the training questions, answers them.
2. A transformer with random weights and a tokenizer of these texts learns to imitate it: the base.
3. GRPO trains the base on the training tasks; the null run does the same with advantages shuffled within each group.
4. Base, null run and trained policy answer the held-out tasks, `GROUP` times each. Seeds of the null run are its own, so that its
   difference shows the noise of the measurement.

Updates gains.json beside this file with the family's record, and prints the table of docs/gains.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "perf"))

from records import circumstances
from sizes import size

from gain_tables import reasoning_gym, shown
from hud import Taskset
from hud.agents import ScriptedAgent
from hud.benchmarks import benchmark
from hud.client import connect
from hud.eval import Job
from hud.eval.results.paired_differences import Rewards, rewards_by_attempt
from hud.exchange.supervision import conversation_of
from hud.train.config import TrainConfig
from hud.train.loop import TrainReport, train
from hud.train.monitoring.progress import Reporter
from hud.train.promotion.checkpoint_comparison import play
from hud.train.supervised.corpus import texts_of_messages
from hud.train.supervised.supervised_run import warm_up

RECORDS = Path(__file__).with_suffix(".json")
GROUP = 4
"""Runs of each held-out task."""
SIZES = {"vocab_size": 1024, "hidden": 128, "layers": 3, "max_context": 2048}
NULL_SEED = 1000
"""Added to the seed of a null run."""
TRAIN, HELD_OUT = size((None, None), (8, 2))
"""Tasks of each split; None: all."""
SPOKEN_RUNS = 700
"""Runs whose words the tokenizer is learned from."""
GRPO: dict[str, Any] = {
    "group": 8,
    "tasks_per_step": 16,
    "lr": 1e-3,
    "lr_schedule": "linear",
    "lr_floor": 0.3,
    "warmup_steps": 3,
    "loss": "importance_sampling",
    "loss_config": {"token_mean": 1.0},
    "max_grad_norm": 1.0,
    "max_turns": 1,
    "eval_group": GROUP,
    "keep": 1,
}


@dataclass(frozen=True)
class Family:
    """Settings of one family; the rest is the same for all."""

    steps: int = size(60, 1)
    """Of GRPO."""
    solved: float = 0.4
    """Share of the teacher's answers that are right; the others answer another question."""
    epochs: int = 2
    """Passes over four answers to each training task."""
    max_tokens: int = 24


FAMILIES = {
    "aiw": Family(),
    "knights_knaves": Family(steps=size(100, 1), solved=0.8, epochs=3, max_tokens=40),
    "syllogism": Family(),
}


class Lines(Reporter):
    """Prints a line for every `every`-th step."""

    def __init__(self, every: int = 10) -> None:
        self.every = every

    def stepped(self, step: int, metrics: dict[str, float]) -> None:
        reward = metrics.get("rollout_reward:mean")
        if reward is not None and step % self.every == 0:
            print(f"  step {step:3d}  reward {reward:.3f}", flush=True)


def teacher(answers: Mapping[int, str], solved: float, seed: int) -> ScriptedAgent:
    """Return the agent that answers a share of the questions right, by index, and gives another's answer to the rest."""

    def answer(run: Any) -> str:
        index = run.task.args["index"]
        luck = random.Random(f"{seed} {index} {run.attempt}")
        return answers[index if luck.random() < solved else luck.choice(list(answers))]

    return ScriptedAgent(answer, name="teacher")


async def make_base(name: str, family: Family, tasks: Taskset, seed: int) -> tuple[str, float]:
    """Make and warm up the model `name`; returns its checkpoint, and the teacher's mean reward."""
    from hud_benchmarks.reasoning_gym.items import item

    indices = [(task.args["generator"], "train", task.args["index"]) for task in tasks]
    answers = {place[2]: str(item(*place)["answer"]) for place in indices}
    job = await Job.start("teacher", group=4)
    await tasks.run(teacher(answers, family.solved, seed), job=job)
    await job.finish()
    spoken = [conversation_of(run.trace) for run in job.runs[:SPOKEN_RUNS]]
    texts = [text for messages in spoken for text in texts_of_messages(messages)]
    body = {"name": name, "texts": texts, "seed": seed, "sizes": SIZES}
    await connect().post("/v2/models/create", body)
    taught = await warm_up(name, job.runs, seed=seed, epochs=family.epochs, batch=16, lr=2e-3)
    return taught.head, job.reward or 0.0


async def constant(tasks: Taskset, held_out: Taskset) -> Rewards:
    """Return the held-out rewards of the answer that is right most often in training."""
    from hud_benchmarks.reasoning_gym.items import item

    places = [(task.args["generator"], "train", task.args["index"]) for task in tasks]
    [(most, _)] = Counter(str(item(*place)["answer"]) for place in places).most_common(1)
    job = await Job.start("constant")
    await held_out.run(ScriptedAgent(lambda run: most, name="constant"), job=job)
    await job.finish()
    return rewards_by_attempt(job.runs)


async def fork(source: str, name: str, **settings: Any) -> None:
    """Fork a model, unless an earlier start of the same measurement did. `settings`: `config`, `checkpoint`."""
    client = connect()
    if name not in {item["model_name"] for item in (await client.get("/v2/models"))["items"]}:
        body = {"source_model_id": source, "name": name, **settings}
        await client.post("/v2/models/fork", body)


async def head(model: str) -> str:
    """Return the head of a model, `base` without one."""
    resolved = await connect().get("/v2/models/resolve", params={"model": model})
    return resolved["head_checkpoint_id"] or "base"


def rollouts_of(report: TrainReport, group: int) -> int:
    """Return the number of rollouts of a training."""
    return group * int(sum(row["metrics"]["groups_drawn:sum"] for row in report.history))


@dataclass
class Comparison:
    """A base, its null run and its training by reward, on the same held-out tasks."""

    base: str
    head: str
    """Checkpoint of the base."""
    settings: dict[str, Any]
    """Of `TrainConfig`, but for model and seed."""
    tasks: Taskset
    held_out: Taskset
    seed: int
    lines_every: int = 10
    """Steps between printed lines."""
    stages: tuple[dict[str, Any], ...] = ({},)
    """Trainings after one another, each with its own settings in place of some."""
    rollouts: int = 0
    """Of the stages that this process trained."""

    async def rewards(self) -> dict[str, Rewards]:
        """Train twice; return the held-out rewards of `base`, `null` and `trained`."""
        return {
            "base": await self.base_rewards(),
            "null": await self.trained_rewards(null=True),
            "trained": await self.trained_rewards(),
        }

    async def base_rewards(self) -> Rewards:
        """Return the held-out rewards of the base."""
        config = TrainConfig(model=self.base, seed=self.seed, **self.settings)
        return await self._score(config, self.head)

    async def trained_rewards(self, *, null: bool = False) -> Rewards:
        """Train a fork of the base, or go on with it; return its held-out rewards. A null run shuffles advantages."""
        name = "null" if null else "trained"
        print(f"{self.base}, {name}", flush=True)
        model = f"{self.base}-{name}"
        await fork(self.base, model, checkpoint=self.head)
        runs = (await connect().get("/v2/training-runs", params={"model": model}))["items"]
        ended = sum(run["status"] == "finished" for run in runs)
        for stage in self.stages[ended:]:
            config = TrainConfig(
                model=model,
                seed=self.seed + NULL_SEED if null else self.seed,
                shuffle_advantages=null,
                **self.settings | stage,
            )
            report = await train(config, tasks=self.tasks, reporter=Lines(self.lines_every))
            self.rollouts += rollouts_of(report, config.group)
        config = TrainConfig(model=model, seed=self.seed, **self.settings)
        return await self._score(config, await head(model))

    async def _score(self, config: TrainConfig, checkpoint: str) -> Rewards:
        rewards = rewards_by_attempt((await play(config, checkpoint, self.held_out)).runs)
        print(f"  {config.model}, held-out: {shown(rewards)}", flush=True)
        return rewards


async def measure(generator: str, seed: int) -> dict[str, Any]:
    """Return the record of one family: rewards of every policy on the held-out tasks, by task."""
    family, started = FAMILIES[generator], perf_counter()
    shipped = benchmark(f"reasoning-gym/{generator}")
    tasks = Taskset("train", list(shipped.tasks("train"))[:TRAIN])
    held_out = Taskset("held-out", list(shipped.tasks("held-out"))[:HELD_OUT])
    base = generator.replace("_", "-")
    head, taught = await make_base(base, family, tasks, seed)
    settings = {**GRPO, "steps": family.steps, "max_tokens": family.max_tokens}

    comparison = Comparison(base, head, settings, tasks, held_out, seed)
    rewards = {"constant": await constant(tasks, held_out), **await comparison.rewards()}
    return {
        "benchmark": shipped.name,
        "null": "shuffled",
        "seed": seed,
        "steps": family.steps,
        "rollouts": comparison.rollouts,
        "teacher": round(taught, 4),
        "minutes": round((perf_counter() - started) / 60, 1),
        **circumstances(),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "rewards": rounded(rewards),
    }


def rounded(rewards: Mapping[str, Rewards]) -> dict[str, dict[str, list[float]]]:
    """Return rewards as a record holds them; an unmeasured run counts 0."""
    return {
        policy: {
            slug: [round(reward or 0.0, 4) for reward in earned] for slug, earned in tasks.items()
        }
        for policy, tasks in rewards.items()
    }


def main() -> None:
    """Read the command line, measure, record, and print the table."""
    parser = argparse.ArgumentParser(description="Gains of GRPO on reasoning-gym.")
    parser.add_argument("names", nargs="*", metavar="reasoning-gym/NAME")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--records", type=Path, default=RECORDS, help="JSON of the records")
    options = parser.parse_args()
    names = [name.removeprefix("reasoning-gym/") for name in options.names] or list(FAMILIES)
    if unknown := [name for name in names if name not in FAMILIES]:
        parser.error(f"no settings for {unknown[0]}; there are some for {', '.join(FAMILIES)}")
    os.environ.pop("HUD_API_URL", None)
    file: Path = options.records
    records: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    for name in names:
        # A store of its own, which is deleted: a family leaves its record, and nothing else.
        home = tempfile.mkdtemp(prefix="gains-")
        os.environ["HUD_HOME"] = home
        try:
            records[name] = asyncio.run(measure(name, options.seed))
        finally:
            shutil.rmtree(home, ignore_errors=True)
        file.write_text(json.dumps(records, separators=(",", ":"), sort_keys=True) + "\n")
        print(reasoning_gym({name: records[name]}), flush=True)
    print(reasoning_gym(records))


if __name__ == "__main__":
    main()
