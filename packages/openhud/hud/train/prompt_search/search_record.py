"""The record of a prompt search on the platform: a training run whose steps are iterations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hud.train.monitoring.command_record import CommandRecord
from hud.train.prompt_search.candidates import Candidate

if TYPE_CHECKING:
    from hud.client import Client
    from hud.eval.results.held_out_scores import Score
    from hud.train.prompt_search.config import PromptSearchConfig

KIND = "prompt search"


@dataclass
class SearchRecord:
    """A search as stored by the platform."""

    command: CommandRecord
    own: str
    """The model's own prompt at the start; empty: none."""
    candidates: list[Candidate] = field(default_factory=list)
    iteration: int = 0
    accepted_at: int = 0
    """Number of iterations up to the last accepted proposal."""
    scores: list[Score] = field(default_factory=list)

    @property
    def client(self) -> Client:
        """The client of the platform."""
        return self.command.client

    @property
    def start(self) -> str | None:
        """The model's head at the start."""
        start: str | None = self.command.state["start"]
        return start

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
        values = config.model_dump(mode="json")
        command = await CommandRecord.open(client, KIND, values, model, fingerprint, fresh=fresh)
        state = command.state
        if command.over is None and not command.resumed:
            await command.change(own=await _own_prompt(client, model))
        record = cls(command, state["own"])
        if command.resumed and command.over is None:
            record.candidates = [Candidate(**values) for values in state.get("candidates") or []]
            record.iteration, record.accepted_at = state.get("iteration") or (0, 0)
            command.notes.append(
                f"Going on with the search {command.id[:12]} after {record.iteration} iterations; the one that was interrupted "
                "begins again."
            )
        return record

    async def save(self, spent: dict[str, Any]) -> None:
        """Store candidates and amounts spent."""
        await self.command.change(
            candidates=[candidate.as_dict() for candidate in self.candidates],
            spent=spent,
            iteration=[self.iteration, self.accepted_at],
        )

    async def add_iteration(
        self, iteration: int, metrics: dict[str, float], spent: dict[str, Any]
    ) -> None:
        """Store a completed iteration."""
        self.iteration = iteration + 1
        await self.save(spent)
        await self.command.step(iteration, metrics)

    async def add_score(self, score: Score) -> None:
        """Store a held-out score."""
        self.scores = [*(other for other in self.scores if other.step != score.step), score]
        await self.command.change(scores=[recorded.as_dict() for recorded in self.scores])

    async def checkpoint(self, text: str) -> str:
        """Return the checkpoint with a prompt under the head, made once."""
        result: dict[str, str] = self.command.state.get("result") or {}
        if text not in result:
            path = f"/v2/models/{self.command.model_id}/prompts"
            node = await self.client.post(path, {"text": text})
            result = {text: node["id"]}
            await self.command.change(result=result, checkpoint=node["id"])
        return result[text]


async def _own_prompt(client: Client, model: dict[str, Any]) -> str:
    """Return the system prompt of a model's head; empty: none."""
    if model["head_checkpoint_id"] is None:
        return ""
    nodes = await client.get(f"/v2/models/{model['id']}/checkpoints")
    active = next((node for node in nodes if node["is_active"]), None)
    return (active or {}).get("system_prompt") or ""
