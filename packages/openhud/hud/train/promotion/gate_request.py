"""`GateRequest`: the question whether a checkpoint becomes a model's head."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from hud.client import Client
from hud.eval.results.promotion_gate import Gate, Subsets


@dataclass(frozen=True)
class GateRequest:
    """A checkpoint, the evidence, and the conditions under which it becomes the head."""

    source: str
    """Model of the checkpoint: the head's own, or a fork of it."""
    checkpoint: str
    jobs: tuple[str, str]
    """Jobs of the head and of the checkpoint: the same tasks on the same seeds."""
    gate: Gate
    subsets: Subsets
    force: bool = False
    """Move the head whatever the gate decides."""

    async def send(self, client: Client, model: str) -> dict[str, Any]:
        """Have the platform decide, and move the head of `model` if it accepts; return the decision.

        Raises `ConflictError` for evidence of other weights, of trained tasks, and for a checkpoint that is the head already.
        """
        body = {
            "checkpoint_id": self.checkpoint,
            "source_model_id": self.source,
            "jobs": self.jobs,
            "gate": asdict(self.gate),
            "subsets": self.subsets,
            "force": self.force,
        }
        decision: dict[str, Any] = await client.post(f"/v2/models/{model}/promote", body)
        return decision
