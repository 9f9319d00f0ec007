"""Candidates: forks trained by gated training runs, so that the model's head moves through the gate only."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from hud.client import Client
from hud.errors import ConflictError, UsageError
from hud.eval.results.promotion_gate import Gate, subsets_of
from hud.train.promotion.gate_request import GateRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hud.environment import Task
    from hud.eval.results.held_out_scores import Score
    from hud.train.config import TrainConfig
    from hud.train.monitoring.progress import Reporter


async def _open_candidate(client: Client, config: TrainConfig, *, fresh: bool) -> TrainConfig:
    """Return the configuration with a gated run's model: that of its newest run, or a new fork."""
    model = await client.get("/v2/models/resolve", params={"model": config.model})
    slug = model["model_name"]
    models = (await client.get("/v2/models"))["items"]
    candidates = [row for row in models if row["base_model_id"] == model["id"]]
    candidates = [row for row in candidates if row["config"]["candidate"]]
    candidates.sort(key=lambda row: row["created_at"])
    if candidates and not fresh:
        newest = config.model_copy(update={"model": candidates[-1]["model_name"]})
        runs = await client.get("/v2/training-runs", params={"model": candidates[-1]["id"]})
        if any(row["state"].get("fingerprint") == newest.fingerprint for row in runs["items"]):
            return newest
    taken = {row["model_name"] for row in models}
    names = (f"{slug}-candidate-{number}" for number in count(1))
    name = next(name for name in names if name not in taken)
    body = {"source_model_id": model["id"], "name": name, "config": {"candidate": True}}
    made = await client.post("/v2/models/fork", body)
    return config.model_copy(update={"model": made["model_name"]})


class Promotions:
    """The gate of a training run: each held-out score is compared with the head's, on the same tasks and seeds."""

    def __init__(
        self, client: Client, config: TrainConfig, held_out: Sequence[Task], reporter: Reporter
    ) -> None:
        self.client, self.config, self.reporter = client, config, reporter
        self.model = config.model
        """The model whose head the gate guards; `config` trains its candidate."""
        self.gate = Gate(
            config.min_gain, config.max_regression, tuple(config.critical), looks_of(config)
        )
        self.subsets = subsets_of({task.slug: task.columns for task in held_out})
        self.decisions: list[dict[str, Any]] = []
        """Decisions of the gate, oldest first."""

    @classmethod
    async def open(
        cls,
        client: Client,
        config: TrainConfig,
        held_out: Sequence[Task],
        reporter: Reporter,
        *,
        fresh: bool,
    ) -> Promotions:
        """Find or make the candidate. Raises `UsageError` without held-out tasks, and for an empty critical subset."""
        if not held_out:
            raise UsageError("The gate judges held-out scores: give held-out tasks (--held-out).")
        made = cls(client, config, held_out, reporter)
        made.gate.check(made.subsets)
        made.config = await _open_candidate(client, config, fresh=fresh)
        reporter.note(
            f"{made.config.model} is trained; the head of {made.model} moves only through the gate."
        )
        return made

    async def consider(self, score: Score, scores: Sequence[Score]) -> None:
        """Move the head to the candidate if the gate allows it; `scores` are those of the whole run."""
        if score.checkpoint_id is None or score.job_id is None:
            return
        head_job = await self._head_job(scores)
        if head_job is None or head_job == score.job_id:
            return
        jobs = (head_job, score.job_id)
        request = GateRequest(self.config.model, score.checkpoint_id, jobs, self.gate, self.subsets)
        try:
            decision = await request.send(self.client, self.model)
        except ConflictError as error:
            # The head was moved manually, or this score was decided before a restart.
            self.reporter.note(f"Step {score.step} was not judged: {error}")
            return
        self.decisions.append({"step": score.step, **decision})
        verb = f"promoted to the head of {self.model}" if decision["promoted"] else "held"
        self.reporter.note(f"Step {score.step} is {verb}. {' '.join(decision['reasons'])}")

    async def _head_job(self, scores: Sequence[Score]) -> str | None:
        """Return the job of this run that scored the head's weights: the base's, or that of the last promotion."""
        nodes = await self.client.get(f"/v2/models/{self.model}/checkpoints")
        head = next((node for node in nodes if node["is_active"]), None)
        record = None if head is None else head["promotion"]
        if record is not None and record["from"]["model"] == self.config.model:
            job: str = record["jobs"][1]
            return job
        return next((score.job_id for score in scores if score.step == 0), None)


def looks_of(config: TrainConfig) -> int:
    """Return the number of gated held-out scores of a whole run: all but the base's."""
    every = config.eval_every or config.steps
    return max(1, -(-config.steps // every))
