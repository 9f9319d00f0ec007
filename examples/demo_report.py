"""What the demo says while it works, and what it leaves behind: `report.json`, and the last screen."""

from __future__ import annotations

import json
import os
import platform
import resource
from pathlib import Path
from typing import Any

from hud.cli.main import run as hud
from hud.eval.results.held_out_scores import Score
from hud.eval.results.intervals import with_interval
from hud.train.loop import TrainReport
from hud.train.monitoring.progress import Reporter

BARS = "▁▂▃▄▅▆▇█"
EVERY = 100
"""Warm-up steps between two lines."""


class Narrator(Reporter):
    """Prints a line for what matters in a training."""

    def __init__(self) -> None:
        self.steps = 0
        self.rewards: list[float] = []

    def heading(self, text: str) -> None:
        """Print the title of a phase."""
        print(f"\n{text}", flush=True)

    def line(self, text: str) -> None:
        """Print a line within a phase."""
        print(f"  {text}", flush=True)

    def started(self, run_id: str, first_step: int, steps: int) -> None:
        self.steps = steps
        if first_step:
            self.line(f"going on at step {first_step}")

    def stepped(self, step: int, metrics: dict[str, float]) -> None:
        reward = metrics.get("rollout_reward:mean")
        if reward is not None:
            self.rewards.append(reward)
            self.line(
                f"step {step + 1:3d}/{self.steps}  reward {reward:.3f}  {sparkline(self.rewards)}  "
                f"{metrics['seconds:sum']:.1f} s"
            )
        elif step % EVERY == 0 or step + 1 == self.steps:
            loss = metrics["loss:sum"] / max(metrics.get("action_tokens:sum", 1.0), 1.0)
            self.line(f"step {step + 1:3d}/{self.steps}  loss per token {loss:.3f}")

    def scored(self, score: Score) -> None:
        self.line(f"held-out after {score.step} steps: {shown(score)}")

    def note(self, text: str) -> None:
        self.line(text)


def sparkline(values: list[float], width: int = 20) -> str:
    """Draw the last values, 0 to 1, as a line of bars."""
    return "".join(BARS[min(int(value * len(BARS)), len(BARS) - 1)] for value in values[-width:])


def shown(score: Score) -> str:
    """Return a score with its interval."""
    return f"{with_interval(score.mean, score.low, score.high)}  ({score.runs} runs)"


def write_report(
    folder: Path,
    result: TrainReport,
    seconds: dict[str, float],
    *,
    cpu_seconds: float,
    seed: int,
    shuffle_advantages: bool,
) -> None:
    """Write `report.json`."""
    before, after = result.before, result.after
    assert before is not None
    assert after is not None
    times = [row["metrics"]["seconds:sum"] for row in result.history]
    report: dict[str, Any] = {
        "before": before.as_dict(),
        "after": after.as_dict(),
        "improved": None not in (after.low, before.high) and after.low > before.high,
        "steps": result.next_step,
        "seed": seed,
        "shuffle_advantages": shuffle_advantages,
        "seconds": {
            **{name: round(value, 1) for name, value in seconds.items()},
            "total": round(sum(seconds.values()), 1),
            "cpu": round(cpu_seconds, 1),
            "grpo_step_mean": round(sum(times) / len(times), 2),
            "grpo_step_max": round(max(times), 2),
        },
        "peak_memory_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        "disk_gib": round(disk_bytes(folder) / 2**30, 2),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "training_reward": [row["metrics"].get("rollout_reward:mean") for row in result.history],
        "held_out": [score.as_dict() for score in result.scores],
        "model": result.model,
        "head": result.head,
        "plot": None if result.plot is None else str(result.plot),
    }
    (folder / "report.json").write_text(json.dumps(report, indent=2) + "\n")


def disk_bytes(folder: Path) -> int:
    """Return the size of a folder's files; of a file with several names once."""
    files = (path.stat() for path in folder.rglob("*") if path.is_file())
    return sum({status.st_ino: status.st_size for status in files}.values())


def print_report(folder: Path, *, example: Path, unseen: str) -> None:
    """Print before and after, the checkpoint tree, where things are, and what to type next.

    `example` is the folder of the tasks, and `unseen` the noun of the held-out ones.
    """
    report = json.loads((folder / "report.json").read_text())
    before, after = Score(**report["before"]), Score(**report["after"])
    model, seconds = report["model"], report["seconds"]
    print(f"\nHeld-out reward\n  before  {shown(before)}\n  after   {shown(after)}")
    if report["improved"]:
        print(f"  The intervals do not overlap: on {unseen} it never trained on, it got better.")
    else:
        print("  It is not better by more than chance explains.")
    print("\nCheckpoints, ▶ at the head", flush=True)
    hud(["models", "checkpoints", model])
    print(f"\nCurve   {report['plot']}\nReport  {folder / 'report.json'}")
    print(
        f"Took    {seconds['total']:.0f} s ({seconds['cpu']:.0f} s of CPU time), {report['peak_memory_gib']:.2f} GiB of memory, "
        f"{report['disk_gib']:.2f} GiB on disk"
    )
    tasks = example.relative_to(Path.cwd()) if example.is_relative_to(Path.cwd()) else example
    print(
        f"\nNext:\n"
        "  source .venv/bin/activate\n"
        f"  export HUD_HOME={folder / 'home'}\n"
        f"  hud eval {tasks}/held_out.py {model} --all    # judge it again\n"
        f"  hud jobs                                            # everything is on record\n"
        f"  hud models head {model} --set base                    # go back, and train a branch\n"
        f"  hud train {model} {tasks}/tasks.py --steps 10"
    )
