"""What a storm's users were promised, and whether it is so."""

import json
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import torch
from safetensors.torch import load_file

from hud_platform.models.checkpoint_files import SAMPLER, STATE


@dataclass
class Ledger:
    """Promises, by kind. What is broken is a sentence in `broken`."""

    rollouts: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Submitted rollouts whose submission was acknowledged: group and reward, by trace."""
    evaluations: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Evaluations that ended with exit code 0: tasks and group, by job."""
    calls: Path | None = None
    """File with a line for each tool call that returned to an agent: `TRACE NUMBER`."""
    trained: list[str] = field(default_factory=list)
    """Models whose training ended."""
    answers: Counter[str] = field(default_factory=Counter)
    """Completions through the gateway, by how they ended."""
    commands: list[str] = field(default_factory=list)
    """Commands that ended, with their exit codes and last lines."""
    broken: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def complain(self, sentence: str) -> None:
        """Add what is not as it was promised."""
        with self.lock:
            self.broken.append(sentence)

    def check_rollouts(self, api: httpx.Client) -> None:
        """Check that each rollout ended once, with its reward, and that its group is whole."""
        groups: Counter[str] = Counter()
        for trace, (group, reward) in self.rollouts.items():
            run = api.get(f"/v2/trace/{trace}/full").json()["run"]
            if (run["status"], run["reward"]) != ("completed", reward):
                self.complain(
                    f"Rollout {trace} is {run['status']} with {run['reward']}, not completed with {reward}: {run['error']}"
                )
            groups[group] += run["group_id"].replace("-", "") == group
        torn = {group: count for group, count in groups.items() if count != 4}
        if torn:
            self.complain(f"Groups that are not whole: {torn}")

    def check_evaluations(self, api: httpx.Client) -> None:
        """Check that each attempt at each task of an evaluation counts once, with its reward."""
        for job, (tasks, group) in self.evaluations.items():
            runs = api.get(f"/v2/jobs/{job}/traces", params={"limit": 1000}).json()["items"]
            ended = [run for run in runs if run["status"] == "completed"]
            counts = Counter((run["slug"], run["attempt"]) for run in ended)
            twice = [place for place, count in counts.items() if count > 1]
            if len(counts) != tasks * group or twice:
                self.complain(
                    f"Evaluation {job} has {len(counts)} of {tasks * group}; twice: {twice}; others: "
                    f"{[run for run in runs if run['status'] != 'completed']}"
                )
            for run in ended:
                if run["reward"] != int(run["slug"].rpartition("-")[2]) / 10:
                    self.complain(f"An evaluation has this run: {run}")

    def check_calls(self, api: httpx.Client) -> int:
        """Check that every tool call that returned was recorded; returns how many there were."""
        assert self.calls is not None
        returned: Counter[str] = Counter()
        for line in self.calls.read_text().splitlines():
            trace, _, number = line.partition(" ")
            returned[trace] = max(returned[trace], int(number))
        for trace, count in returned.items():
            answer = api.get(f"/v2/trace/{trace}/full")
            steps: list[dict[str, Any]] = (
                answer.json()["trace"]["steps"] if answer.status_code == 200 else []
            )
            found = sum(step["source"] == "tool" for step in steps)
            if found < count:
                self.complain(
                    f"Run {trace} had {count} tool calls return, and {found} are recorded."
                )
        return returned.total()

    def check_weights(self, api: httpx.Client, home: Path, calm: str) -> None:
        """Check that every trained model has the weights and the optimizer of the undisturbed one, bit for bit."""
        expected = _head(api, home, calm)
        for name in self.trained:
            found = _head(api, home, name)
            for file in (f"{SAMPLER}/model.safetensors", STATE):
                one, other = load_file(expected / file), load_file(found / file)
                if one.keys() != other.keys() or not all(
                    torch.equal(one[key], other[key]) for key in one
                ):
                    ended = [line for line in self.commands if f" {name} " in line]
                    self.complain(
                        f"Model {name} has another {file} than {calm}: {ended}; {_played(api, name)}"
                    )

    def check_settled(self, api: httpx.Client) -> None:
        """Check that nothing waits, runs, or is held when everything is over."""
        queue = api.get("/v2/fleet/queue")
        if queue.status_code == 200 and any(queue.json().values()):
            self.complain(f"The queue is not empty: {queue.json()}")
        jobs = api.get("/v2/jobs", params={"limit": 1000}).json()["items"]
        known = set(self.evaluations)
        running = [job["id"] for job in jobs if job["status"] == "running" and job["id"] in known]
        if running:
            self.complain(f"Jobs that ended are shown as running: {running}")

    def shown(self) -> dict[str, Any]:
        """Return the number of promises of each kind."""
        return {
            "rollouts": len(self.rollouts),
            "evaluations": len(self.evaluations),
            "trainings": len(self.trained),
            "answers": dict(self.answers),
            "broken": len(self.broken),
        }


def model_id(api: httpx.Client, name: str) -> str:
    found: str = api.get("/v2/models/resolve", params={"model": name}).json()["id"]
    return found


def _head(api: httpx.Client, home: Path, name: str) -> Path:
    nodes = api.get(f"/v2/models/{model_id(api, name)}/checkpoints").json()
    head = max(nodes, key=lambda node: node["step"])
    (found,) = home.glob(f"models/*/checkpoints/step-*-{head['id'][:6]}")
    return found


def parse_json(text: str) -> Any:
    """Return the JSON document at the end of a command's output."""
    return json.loads(text[text.index("{") :])


def _played(api: httpx.Client, model: str) -> list[tuple[str, int, str, float | None]]:
    """Return the rollouts of a model's training, in the order of their starts."""
    jobs = api.get("/v2/jobs", params={"limit": 1000}).json()["items"]
    runs = [
        run
        for job in jobs
        if job["purpose"] == "training" and job["name"].startswith(f"{model} ")
        for run in api.get(f"/v2/jobs/{job['id']}/traces", params={"limit": 1000}).json()["items"]
    ]
    runs.sort(key=lambda run: run["started_at"])
    return [(run["slug"], run["attempt"], run["status"], run["reward"]) for run in runs]
