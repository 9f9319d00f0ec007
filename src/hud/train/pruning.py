"""Making room: which checkpoints of a run keep their files."""

from __future__ import annotations

from collections.abc import Collection

from hud.client import Client


async def prune(client: Client, model_id: str, expendable: Collection[str]) -> None:
    """Delete the files of these checkpoints; heads and what forks need stay, and so does every node."""
    nodes = await client.get(f"/v2/models/{model_id}/checkpoints")
    gone = set(expendable)
    keep = [node["id"] for node in nodes if not node["pruned"] and node["id"] not in gone]
    if any(node["id"] in gone and not node["pruned"] for node in nodes):
        await client.post(f"/v2/models/{model_id}/prune", {"keep": keep})
