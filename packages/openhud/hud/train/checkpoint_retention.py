"""Retention of a training run's checkpoint files."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from hud.client import Client

if TYPE_CHECKING:
    from hud.train.monitoring.progress import Score
    from hud.train.run_settings import RunSettings


def expendable_of(
    config: RunSettings, nodes: Mapping[int, str], scores: Sequence[Score]
) -> set[str]:
    """Return the checkpoints of a run whose files may be deleted; `nodes` are by the number of steps done.

    Kept are the newest `config.keep`, every `config.kept_every`-th and the best held-out ones, over all sets and of each.
    """
    if config.keep == "all":
        return set()
    every = config.kept_every
    order = sorted(nodes)
    retained = {nodes[done] for done in order[-config.keep :]}
    retained |= {nodes[done] for done in order if every is not None and done % every == 0}
    # Also if the base is better than all of them.
    best: dict[str | None, tuple[float, int, str]] = {}
    for score in scores:
        if score.checkpoint_id is not None:
            for name, mean in [
                (None, score.mean),
                *((set_score.name, set_score.mean) for set_score in score.sets),
            ]:
                own = (mean, score.step, score.checkpoint_id)
                best[name] = max(best.get(name, own), own)
    retained |= {checkpoint for _, _, checkpoint in best.values()}
    return set(nodes.values()) - retained


async def prune(client: Client, model_id: str, expendable: Collection[str]) -> None:
    """Delete the files of these checkpoints, except the head, named ones and those that forks need; nodes are kept."""
    nodes = await client.get(f"/v2/models/{model_id}/checkpoints")
    gone = set(expendable)
    keep = [node["id"] for node in nodes if not node["pruned"] and node["id"] not in gone]
    if any(node["id"] in gone and not node["pruned"] for node in nodes):
        await client.post(f"/v2/models/{model_id}/prune", {"keep": keep})
