"""Retention of a training run's checkpoint files."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hud.client import Client
from hud.train.monitoring.loss_metrics import held_out_losses

if TYPE_CHECKING:
    from hud.eval.results.held_out_scores import Score
    from hud.train.run_settings import RunSettings


_STATES = 2
"""Number of newest checkpoints that keep their optimizer state."""


@dataclass(frozen=True)
class Retention:
    """Files of a run's checkpoints that are not kept, by the checkpoints' ids."""

    expendable: set[str]
    """Checkpoints whose files may be deleted."""
    weights_only: set[str]
    """Other checkpoints, whose optimizer state may be deleted: it is two to four times as large as the weights."""


def retention_of(
    config: RunSettings,
    nodes: Mapping[int, str],
    scores: Sequence[Score],
    history: Sequence[Mapping[str, Any]] = (),
) -> Retention:
    """Return the retention of a run; `nodes` are by the number of steps done.

    Kept are the newest `config.keep`, every `config.kept_every`-th and the best held-out ones, over all sets and of each, and by
    the held-out loss in `history`. Of these the newest two and the best keep their optimizer state.
    """
    if config.keep == "all":
        return Retention(set(), set())
    every = config.kept_every
    order = sorted(nodes)
    newest = {nodes[done] for done in order[-config.keep :]}
    periodic = {nodes[done] for done in order if every is not None and done % every == 0}
    best = _best_of(scores) | _best_by_loss(nodes, history)
    retained = newest | periodic | best
    resumable = {nodes[done] for done in order[-_STATES:]} | best
    return Retention(set(nodes.values()) - retained, retained - resumable)


def _best_of(scores: Sequence[Score]) -> set[str]:
    """Return the checkpoints with the best scores, over all sets and of each."""
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
    return {checkpoint for _, _, checkpoint in best.values()}


def _best_by_loss(nodes: Mapping[int, str], history: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the checkpoint with the lowest held-out loss, if it has one."""
    losses = held_out_losses(history)
    if not losses:
        return set()
    best = min(losses, key=lambda done: losses[done])
    return {nodes[best]} if best in nodes else set()


async def prune(
    client: Client, model_id: str, expendable: Collection[str], weights_only: Collection[str]
) -> None:
    """Delete the files of expendable checkpoints, and the optimizer states of others; nodes are kept.

    The head, named checkpoints and those that forks need keep all.
    """
    nodes = await client.get(f"/v2/models/{model_id}/checkpoints")
    there = [node["id"] for node in nodes if not node["pruned"]]
    keep = [identifier for identifier in there if identifier not in set(expendable)]
    lighter = [identifier for identifier in keep if identifier in set(weights_only)]
    if lighter or len(keep) < len(there):
        body = {"keep": keep, "weights_only": lighter}
        await client.post(f"/v2/models/{model_id}/prune", body)
