"""Handover of rollouts to workers: each with its environments, and with a pass for its agent's turns alone."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any

from hud import exact_json
from hud.environment.templates.runtime_config import run_seconds_of
from hud.errors import NotFoundError
from hud_platform.access import Identity, Scope
from hud_platform.access.keys import Keys
from hud_platform.access.passes import Passes
from hud_platform.environments.registry import Environments, RunnableEnvironment
from hud_platform.models.registry import Registry
from hud_platform.rollouts.rollout_queue import Taken
from hud_platform.store import Store
from hud_platform.tasksets.playable import environments_of

LONGEST_SECONDS = 24 * 3600.0
"""Most that a rollout may take, whatever it asks for."""
PASS_MARGIN_SECONDS = 600.0
"""Seconds for which a rollout's own pass outlives the rollout's time limit."""
KNOWN_SECONDS = 1.0
"""Maximum age, in seconds, of facts that are handed over; those of rollouts submitted meanwhile are read anew."""


class Handover:
    """Rollouts as a worker gets them."""

    def __init__(self, keys: Keys, passes: Passes, registry: Registry) -> None:
        self.passes = passes
        self._read = partial(Facts, keys, registry)
        self._facts = self._read()

    def all(self, taken: list[Taken], *, here: bool) -> list[dict[str, Any]]:
        """Return rollouts, each with a pass of its own; what several need is looked up once.

        `here`: the worker shares the server's disk, and runs builds where they lie.
        """
        facts = self._facts
        if not facts.hold_for(max(rollout.created_at for rollout in taken)):
            facts = self._facts = self._read()
        items = []
        for rollout in taken:
            limit = min(run_seconds_of(rollout.spec.get("runtime_config")), LONGEST_SECONDS)
            who = facts.identity(rollout.team_id, rollout.key_id)
            handed_over: dict[str, Any] = {
                "trace_id": rollout.trace_id,
                "attempt": rollout.attempt,
                "job_id": rollout.job_id,
                "spec": rollout.spec,
                "needs": {} if rollout.needs is None else exact_json.loads(rollout.needs),
                "pass": self.passes.make(who, limit + PASS_MARGIN_SECONDS),
                "limit_seconds": limit,
                "problem": None,
                "environments": {},
                "samples": facts.samples(rollout.team_id, rollout.spec["agent"]["config"]["model"]),
            }
            try:
                for env in environments_of([rollout.spec]):
                    build = facts.runnable(rollout.team_id, env)
                    handed_over["environments"][env] = build.shown() if here else build.fetched()
            except NotFoundError as error:
                handed_over["problem"] = str(error)
            items.append(handed_over)
        return items


class Facts:
    """Builds, models and keys that rollouts name, each looked up once."""

    def __init__(self, keys: Keys, registry: Registry) -> None:
        self._since, self._until = datetime.now(UTC), time.monotonic() + KNOWN_SECONDS
        # Caches of this object, and with its lifetime.
        self.runnable = cache(partial(_runnable, registry.store))
        self.samples = cache(partial(_samples, registry))
        self.identity = cache(partial(_identity, keys))

    def hold_for(self, submitted: datetime) -> bool:
        """Return whether these are facts for rollouts submitted until then: later ones may be of a newer build."""
        return submitted < self._since and time.monotonic() < self._until


def _runnable(store: Store, team: str, env: str) -> RunnableEnvironment:
    return Environments(store, team).runnable(env)


def _samples(registry: Registry, team: str, model: str) -> bool:
    # A provider's model that is in no registry is the gateway's to find.
    with contextlib.suppress(NotFoundError):
        return registry.of(team).model(model).kind != "provider"
    return False


def _identity(keys: Keys, team: str, key_id: str | None) -> Identity:
    run = frozenset[Scope]({"run"})
    key = keys.by_id(key_id) if key_id else None
    if key is not None:  # Its rollouts use up its limits.
        return replace(key.identity, scopes=run, inference_only=True)
    return Identity(team_id=team, scopes=run, key_id=key_id, inference_only=True)
