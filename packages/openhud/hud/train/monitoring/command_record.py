"""The record of a command on the platform, as a training run: its state, which a repeated command continues from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hud.processes.presence import presence

if TYPE_CHECKING:
    from hud.client import Client


@dataclass
class CommandRecord:
    """A recorded command. It holds no session of the model."""

    client: Client
    id: str
    model_id: str
    state: dict[str, Any]
    resumed: bool = False
    over: dict[str, Any] | None = None
    """Report of a command that finished before."""
    notes: list[str] = field(default_factory=list)

    @classmethod
    async def open(
        cls,
        client: Client,
        kind: str,
        config: dict[str, Any],
        model: dict[str, Any],
        fingerprint: str,
        *,
        fresh: bool,
        promotes: bool = False,
    ) -> CommandRecord:
        """Return the newest record of this fingerprint, to be continued; a new one where there is none, or the head has moved since.

        `kind` is a noun for displays. With `promotes`, promotions since the start are the command's own.
        """
        head = model["head_checkpoint_id"]
        rows = (await client.get("/v2/training-runs", params={"model": model["id"]}))["items"]
        row = next((row for row in rows if row["state"].get("fingerprint") == fingerprint), None)
        here = {"by": presence(kind.replace(" ", "-"))}
        if row is not None and not fresh:
            state = row["state"]
            record = cls(client, row["id"], model["id"], state, resumed=True)
            # Its own promotion moves the head, too.
            in_place = head in (state["start"], state.get("checkpoint"))
            if promotes and not in_place:
                in_place = await _promoted_from(client, model, state["start"])
            if row["status"] == "finished" and in_place:
                record.over = state.get("report")
                record.notes.append(
                    f"The {kind} {row['id'][:12]} of these settings has finished already; nothing is played. For a new one, --fresh."
                )
                return record
            if row["status"] != "finished" and in_place:
                body = {"status": "running", "config": {**config, "kind": kind}, "state": here}
                await client.post(f"/v2/training-runs/{row['id']}", body)
                return record
        state = {"fingerprint": fingerprint, "start": head, **here}
        body = {"model": model["id"], "config": {**config, "kind": kind}, "state": state}
        made = await client.post("/v2/training-runs", body)
        record = cls(client, made["id"], model["id"], state)
        if row is not None and not fresh:
            record.notes.append(
                f"A {kind} of these settings is there, but the head has moved since: this is a new one, from the head."
            )
        return record

    async def change(self, **state: Any) -> None:
        """Set keys of the state."""
        self.state |= state
        await self.client.post(f"/v2/training-runs/{self.id}", {"state": state})

    async def add(self, name: str, value: Any) -> None:
        """Append to a list of the state, such as `jobs`."""
        await self.change(**{name: [*(self.state.get(name) or []), value]})

    async def step(self, step: int, metrics: dict[str, float]) -> None:
        """Report a completed step."""
        body = {"step": step, "next_step": step + 1, "metrics": metrics, "state": {}}
        await self.client.post(f"/v2/training-runs/{self.id}/steps", body)

    async def end(self, report: dict[str, Any] | None) -> None:
        """Record the end: with a report it is finished, without one stopped."""
        status = "stopped" if report is None else "finished"
        state = {} if report is None else {"report": report}
        await self.client.post(f"/v2/training-runs/{self.id}", {"status": status, "state": state})


async def _promoted_from(client: Client, model: dict[str, Any], start: str | None) -> bool:
    """Return True if only promotions lie between `start` and the head."""
    nodes = {node["id"]: node for node in await client.get(f"/v2/models/{model['id']}/checkpoints")}
    place = model["head_checkpoint_id"]
    while place != start and place in nodes and nodes[place]["promotion"] is not None:
        place = nodes[place]["prev_model_checkpoint_id"]
    return bool(place == start)
