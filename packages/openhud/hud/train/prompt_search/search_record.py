"""The record of a prompt search on the platform: a training run whose steps are iterations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hud.client.presence import presence
from hud.train.prompt_search.candidates import Candidate

if TYPE_CHECKING:
    from hud.client import Client
    from hud.train.monitoring.progress import Score
    from hud.train.prompt_search.config import PromptSearchConfig


@dataclass
class SearchRecord:
    """A search as stored by the platform."""

    client: Client
    id: str
    model_id: str
    own: str
    """The model's own prompt at the start; empty: none."""
    start: str | None
    """The model's head at the start."""
    candidates: list[Candidate] = field(default_factory=list)
    iteration: int = 0
    accepted_at: int = 0
    """Number of iterations up to the last accepted proposal."""
    spent: dict[str, Any] = field(default_factory=dict)
    """Amounts spent by earlier calls; see `planning.budget.Spent`."""
    jobs: list[str] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)
    result: dict[str, str] = field(default_factory=dict)
    """The checkpoint made of a prompt, by its text."""
    notes: list[str] = field(default_factory=list)
    over: dict[str, Any] | None = None
    """Report of a search that finished before."""

    @classmethod
    async def open(
        cls,
        client: Client,
        config: PromptSearchConfig,
        model: dict[str, Any],
        fingerprint: str,
        *,
        fresh: bool,
    ) -> SearchRecord:
        """Return the newest search of this fingerprint, to be continued; a new one where there is none or the head has moved."""
        head = model["head_checkpoint_id"]
        own = ""
        if head is not None:
            nodes = await client.get(f"/v2/models/{model['id']}/checkpoints")
            active = next((node for node in nodes if node["is_active"]), None)
            own = (active or {}).get("system_prompt") or ""
        rows = (await client.get("/v2/training-runs", params={"model": model["id"]}))["items"]
        row = next((row for row in rows if row["state"].get("fingerprint") == fingerprint), None)
        if row is not None and not fresh:
            state = row["state"]
            report = state.get("report")
            record = cls(client, row["id"], model["id"], state["own"], state["start"])
            if row["status"] == "finished" and head in (state["start"], state.get("checkpoint")):
                record.over = report
                record.notes.append(
                    f"The search {row['id'][:12]} of these settings has finished already; nothing is played. For a new one, --fresh."
                )
                return record
            if row["status"] != "finished" and head == state["start"]:
                record._restore(row)
                body = {"status": "running", "state": {"by": presence("optimize")}}
                await client.post(f"/v2/training-runs/{row['id']}", body)
                return record
        record = cls(client, "", model["id"], own, head)
        if row is not None and not fresh:
            record.notes.append(
                "A search of these settings is there, but the head has moved since: this is a new one, from the head."
            )
        body = {
            "model": model["id"],
            "config": {**config.model_dump(mode="json"), "kind": "prompt search"},
            "state": {
                "fingerprint": fingerprint,
                "own": own,
                "start": head,
                "by": presence("optimize"),
            },
        }
        record.id = (await client.post("/v2/training-runs", body))["id"]
        return record

    async def save(self, spent: dict[str, Any]) -> None:
        """Store candidates and amounts spent."""
        state = {"candidates": [candidate.as_dict() for candidate in self.candidates]}
        await self._change(
            {**state, "spent": spent, "iteration": [self.iteration, self.accepted_at]}
        )

    async def add_iteration(
        self, iteration: int, metrics: dict[str, float], spent: dict[str, Any]
    ) -> None:
        """Store a completed iteration."""
        self.iteration = iteration + 1
        await self.save(spent)
        body = {"step": iteration, "next_step": self.iteration, "metrics": metrics, "state": {}}
        await self.client.post(f"/v2/training-runs/{self.id}/steps", body)

    async def add_job(self, job_id: str) -> None:
        """Store a job of rollouts on training tasks, before it plays any."""
        self.jobs = [*self.jobs, job_id]
        await self._change({"jobs": self.jobs})

    async def add_score(self, score: Score) -> None:
        """Store a held-out score."""
        self.scores = [*(other for other in self.scores if other.step != score.step), score]
        await self._change({"scores": [recorded.as_dict() for recorded in self.scores]})

    async def checkpoint(self, text: str) -> str:
        """Return the checkpoint with a prompt under the head, made once."""
        if text not in self.result:
            node = await self.client.post(f"/v2/models/{self.model_id}/prompts", {"text": text})
            self.result = {text: node["id"]}
            await self._change({"result": self.result, "checkpoint": node["id"]})
        return self.result[text]

    async def end(self, report: dict[str, Any] | None, spent: dict[str, Any]) -> None:
        """Store the end: with a report the search is finished, without it stopped."""
        await self.save(spent)
        state = {} if report is None else {"report": report}
        body = {"status": "stopped" if report is None else "finished", "state": state}
        await self.client.post(f"/v2/training-runs/{self.id}", body)

    def _restore(self, row: dict[str, Any]) -> None:
        state = row["state"]
        self.candidates = [Candidate(**values) for values in state.get("candidates") or []]
        self.iteration, self.accepted_at = state.get("iteration") or (0, 0)
        self.spent = dict(state.get("spent") or {})
        self.jobs = list(state.get("jobs") or [])
        self.result = dict(state.get("result") or {})
        self.notes.append(
            f"Going on with the search {self.id[:12]} after {self.iteration} iterations; the one that was interrupted begins again."
        )

    async def _change(self, state: dict[str, Any]) -> None:
        await self.client.post(f"/v2/training-runs/{self.id}", {"state": state})
