"""`HostedRuntime`: the whole rollout, agent included, is played by the platform."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from typing import TYPE_CHECKING, Any

from hud.errors import HudError, UsageError
from hud.eval.grade import Grade
from hud.trace import dashed, parse_trace

if TYPE_CHECKING:
    from hud.eval.run import Player, Run

POLL_SECONDS = 5.0
_OVER = ("completed", "error", "cancelled")


class HostedRuntime:
    """Submits rollouts to the platform and waits for what comes of them.

    The client may go away: what was submitted is played to its end, unless it is cancelled. `poll_interval` is in
    seconds.
    """

    def __init__(self, *, poll_interval: float = POLL_SECONDS, run_timeout: float | None = None):
        if not poll_interval > 0:
            raise UsageError(f"poll_interval must be positive, not {poll_interval:g}.")
        self.poll_interval = poll_interval
        self.run_timeout = run_timeout

    def __call__(self, task: Any) -> Any:
        raise UsageError(
            f"Task {task.slug!r}: HostedRuntime plays whole rollouts on the platform; there is no environment here "
            "to connect to."
        )

    async def play(self, run: Run, agent: Player) -> None:
        """Have the platform play `run`, and fill it with what came of it."""
        client = importlib.import_module("hud.client").connect()
        await client.post("/v2/rollouts/submit", _submission(run, agent), retry=True)
        run.runtime = "hosted"
        try:
            state = await self._wait(client, run)
        except (asyncio.CancelledError, TimeoutError):
            with contextlib.suppress(HudError):
                await client.post("/v2/rollouts/cancel", {"trace_id": dashed(run.trace_id)})
            raise
        _fill(run, state)

    async def _wait(self, client: Any, run: Run) -> dict[str, Any]:
        wait = min(0.2, self.poll_interval)
        while True:
            found = await client.get(f"/v2/trace/{run.trace_id}")
            if found["status"] in _OVER:
                whole: dict[str, Any] = await client.get(f"/v2/trace/{run.trace_id}/full")
                return whole
            await asyncio.sleep(wait)
            wait = min(wait * 1.5, self.poll_interval)


def _submission(run: Run, agent: Player) -> dict[str, Any]:
    config = getattr(agent, "config", None)
    if config is None or not getattr(agent, "model_name", None):
        raise UsageError(
            "HostedRuntime plays agents that the platform can make: create_agent(MODEL), not code of this process."
        )
    private = {"api_key", "base_url"}
    settings = config.model_dump(mode="json", exclude_none=True, exclude=private)
    task = run.task
    body: dict[str, Any] = {
        "trace_id": dashed(run.trace_id),
        "job_id": None if run.job_id is None else dashed(run.job_id),
        "group_id": run.group_id,
        "env": task.env,
        "task": task.id,
        "slug": run.slug,
        "attempt": run.attempt,
        "args": task.args,
        "agent": {
            "type": "openai_compatible",
            "config": {**settings, **(task.agent_config or {}), "model": run.model},
        },
        "runtime_config": task.runtime_config,
        "verifier": None if task.verifier is None else task.verifier.model_dump(mode="json"),
    }
    return {name: value for name, value in body.items() if value is not None}


def _fill(run: Run, whole: dict[str, Any]) -> None:
    found = whole["run"]
    run.trace = parse_trace(whole["trace"])
    run.grade = Grade.from_dict(found["grade"]) if found["grade"] else Grade.ungraded()
    run.failure_kind, run.error = found["failure_kind"], found["error"]
    if found["reward"] is None:
        run.grade = Grade.ungraded()
    run.phase = "over"
