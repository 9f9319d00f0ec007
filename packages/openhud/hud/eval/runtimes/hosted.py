"""`HostedRuntime`: the whole rollout, agent included, is played by the platform."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hud.errors import HudError, UsageError
from hud.eval.grade import Grade
from hud.eval.rollout_failure import record_failure
from hud.eval.runtimes.rollout_runtime import RolloutRuntime
from hud.trace import dashed, now, parse_trace
from hud.trace.recording.recorder import NullRecorder

if TYPE_CHECKING:
    from hud.agents.agent import Agent
    from hud.eval.run import Run

POLL_SECONDS = 5.0
ABANDON_SECONDS = 10.0
"""A worker ends a cancelled rollout when it next renews its leases, every 2 s; a worker that is lost samples nothing more."""
_FIRST_POLL_SECONDS = 0.2
_AT_ONCE = 16
"""Maximum concurrent requests, for any number of rollouts."""
_MOST = 256
"""Maximum number of rollouts submitted in one request."""
_PAGE = 1000
_OVER = ("completed", "error", "cancelled")


class HostedRuntime(RolloutRuntime):
    """Runtime that submits rollouts to the platform and waits for their results.

    The client may go away: what was submitted is played to its end, unless it is cancelled. `poll_interval` is in
    seconds; `run_timeout` bounds each rollout from when it is begun, not from when it was submitted.
    """

    def __init__(
        self, *, poll_interval: float = POLL_SECONDS, run_timeout: float | None = None
    ) -> None:
        for name, value in (("poll_interval", poll_interval), ("run_timeout", run_timeout)):
            if value is not None and not value > 0:
                raise UsageError(f"{name} must be positive, not {value:g}.")
        self.poll_interval = poll_interval
        self.run_timeout = run_timeout
        self._detached = False
        self._waits: dict[str | None, _Waits] = {}

    def detach(self) -> None:
        """Leave what was submitted to the platform: from now on, cancelling here cancels nothing there."""
        self._detached = True

    async def abandon(self, jobs: Sequence[str]) -> None:
        """Cancel what the platform still plays of jobs whose client is gone.

        Returns when it is over, after `ABANDON_SECONDS` at the latest, so that what is sampled next shares no batch with it.
        """
        from hud.client import connect

        client, loop = connect(), asyncio.get_running_loop()
        until = loop.time() + ABANDON_SECONDS
        for job in jobs:
            body = {"job_id": dashed(job)}
            answer = await client.post("/v2/rollouts/cancel_job", body, retry=True)
            while answer["cancelled"] and loop.time() < until:
                if (await client.get(f"/v2/jobs/{job}"))["status"] != "running":
                    break
                await asyncio.sleep(_FIRST_POLL_SECONDS)

    def check_agent(self, agent: Agent) -> None:
        """Raise `UsageError` for an agent that the platform cannot create."""
        _agent_settings(agent)

    async def play(self, run: Run, agent: Agent, rollout_timeout: float | None) -> Run:
        """Have the platform play `run`, and copy the result into it. The platform records it, and repeats it."""
        run.model = agent.model_name
        run.recorder = NullRecorder()
        # The platform enforces the limit: here it would include the time in its queue.
        run.live.limit_seconds = math.inf if rollout_timeout is None else rollout_timeout
        try:
            await self._submit_and_wait(run, agent)
        except BaseException as error:
            record_failure(run, error)
        finally:
            run.ended_at = now()
        return run

    async def _submit_and_wait(self, run: Run, agent: Agent) -> None:
        from hud.client import connect  # Imports an HTTP client, for this runtime only.

        client = connect()
        waits = self._waits.get(run.job_id)
        if waits is None or waits.loop is not asyncio.get_running_loop():
            waits = self._waits[run.job_id] = _Waits(client, run.job_id, self.poll_interval)
        body = _submission(run, agent, self.run_timeout)
        run.runtime = "hosted"
        try:
            await waits.submissions.submit(body)
            await waits.over(run.trace_id)
            async with waits.at_once:
                trace = await client.get(f"/v2/trace/{run.trace_id}/full")
        except asyncio.CancelledError:
            if not self._detached:
                with contextlib.suppress(HudError):
                    await client.post("/v2/rollouts/cancel", {"trace_id": dashed(run.trace_id)})
            raise
        _fill(run, trace)


class _Submissions:
    """Submits rollouts: those that come while a request is under way go together with the next."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._waiting: list[tuple[dict[str, Any], asyncio.Future[None]]] = []
        self._sending: asyncio.Task[None] | None = None

    async def submit(self, body: dict[str, Any]) -> None:
        """Submit one; raises the error of one that is refused."""
        submitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((body, submitted))
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send())
        try:
            await submitted
        except asyncio.CancelledError:
            # What is to be cancelled on the platform must be there, or never come.
            await asyncio.wait({self._sending}, timeout=ABANDON_SECONDS)
            raise

    async def _send(self) -> None:
        await asyncio.sleep(0)  # A batch's rollouts begin in the same iteration of the event loop.
        while self._waiting:
            some, self._waiting = self._waiting[:_MOST], self._waiting[_MOST:]
            some = [(body, submitted) for body, submitted in some if not submitted.done()]
            if some:
                await self._post(some)

    async def _post(self, some: list[tuple[dict[str, Any], asyncio.Future[None]]]) -> None:
        from hud.client.client import refusal

        request = {"rollouts": [body for body, _ in some]}
        refused: list[Exception | None]
        try:
            answer = await self._client.post("/v2/rollouts/submit_many", request, retry=True)
            refused = [
                refusal(outcome["refused"], outcome["detail"]) if "refused" in outcome else None
                for outcome in answer["results"]
            ]
        except Exception as error:
            refused = [error] * len(some)
        for (_, submitted), why in zip(some, refused, strict=True):
            if submitted.done():
                continue  # Its run was cancelled.
            if why is None:
                submitted.set_result(None)
            else:
                submitted.set_exception(why)


class _Waits:
    """Waits for the rollouts of one job, with one request for all of them."""

    def __init__(self, client: Any, job_id: str | None, interval: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.at_once = asyncio.Semaphore(_AT_ONCE)
        self.submissions = _Submissions(client)
        self._client, self._job_id, self._interval = client, job_id, interval
        self._open: dict[str, asyncio.Future[None]] = {}
        self._looking: asyncio.Task[None] | None = None

    async def over(self, trace_id: str) -> None:
        """Return when a rollout is over; raises `PlatformError` if the platform cannot be asked any more."""
        waiting = self._open[trace_id] = self.loop.create_future()
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            await waiting
        finally:
            self._open.pop(trace_id, None)

    async def _look(self) -> None:
        wait = min(_FIRST_POLL_SECONDS, self._interval)
        while self._open:
            try:
                ended = await self._ended()
            except HudError as error:
                for waiting in self._open.values():
                    if not waiting.done():
                        waiting.set_exception(error)
                return
            for trace_id in ended & self._open.keys():
                waiting = self._open.pop(trace_id)
                if not waiting.done():
                    waiting.set_result(None)
            await asyncio.sleep(wait)
            wait = min(wait * 1.5, self._interval)

    async def _ended(self) -> set[str]:
        """Return which rollouts are over, of those that are waited for."""
        wanted = set(self._open)
        if self._job_id is None or len(wanted) == 1:
            states = {
                trace_id: await self._client.get(f"/v2/trace/{trace_id}") for trace_id in wanted
            }
            return {trace_id for trace_id, state in states.items() if state["status"] in _OVER}
        ended: set[str] = set()
        seen = 0
        while True:
            page = await self._client.get(
                f"/v2/jobs/{self._job_id}/traces", params={"limit": _PAGE, "offset": seen}
            )
            ended |= {row["id"] for row in page["items"] if row["status"] in _OVER}
            seen += len(page["items"])
            if not page["items"] or seen >= page["total"]:
                return ended & wanted


def _agent_settings(agent: Agent) -> tuple[str, dict[str, Any]]:
    """Return the type and the settings from which the platform creates an agent."""
    from hud.agents.agent_kinds import kind_of_settings  # Loads the tool loop.
    from hud.agents.programs.own_loop_agent import OwnLoopAgent, refusal_by_platform

    if isinstance(agent, OwnLoopAgent):
        raise UsageError(refusal_by_platform(agent.name))
    config = agent.hosted_config
    if config is None or not agent.model_name:
        raise UsageError(
            "HostedRuntime plays agents that the platform can make: create_agent(MODEL), not code of this process."
        )
    private = {"api_key", "base_url"}
    settings = config.model_dump(mode="json", exclude_none=True, exclude=private)
    subagents = dict(agent.subagents)
    if not all(isinstance(slug, str) for slug in subagents.values()):
        raise UsageError(
            "HostedRuntime plays subagents that the platform can make: name their models' slugs, no agents of this "
            "process."
        )
    if subagents:
        settings["subagents"] = subagents
    return kind_of_settings(config), settings


def _submission(run: Run, agent: Agent, run_timeout: float | None) -> dict[str, Any]:
    kind, settings = _agent_settings(agent)
    task = run.task
    body: dict[str, Any] = {
        "trace_id": dashed(run.trace_id),
        "job_id": None if run.job_id is None else dashed(run.job_id),
        "group_id": run.group_id,
        "env": task.env,
        "task": task.id,
        "slug": run.slug,
        "attempt": run.attempt,
        "training_progress": run.training_progress,
        "args": task.args,
        "agent": {
            "type": kind,
            "config": {**settings, **(task.agent_config or {}), "model": run.model},
            **({} if agent.hosted_sampling is None else {"sampling": agent.hosted_sampling}),
        },
        "runtime_config": _limited(task.runtime_config, run.live.limit_seconds, run_timeout),
        "verifier": None if task.verifier is None else task.verifier.model_dump(mode="json"),
    }
    return {name: value for name, value in body.items() if value is not None}


def _limited(config: dict[str, Any] | None, *limits: float | None) -> dict[str, Any] | None:
    """Return what a task asks of its runtime, with the least of its own limit and these."""
    own = ((config or {}).get("limits") or {}).get("run_timeout_s")
    finite = [limit for limit in (own, *limits) if limit is not None and math.isfinite(limit)]
    if not finite:
        return config
    return {
        **(config or {}),
        "limits": {**((config or {}).get("limits") or {}), "run_timeout_s": min(finite)},
    }


def _fill(run: Run, answer: dict[str, Any]) -> None:
    row = answer["run"]
    run.trace = parse_trace(answer["trace"])
    run.grade = Grade.from_dict(row["grade"]) if row["grade"] else Grade.ungraded()
    run.failure_kind, run.error = row["failure_kind"], row["error"]
    if row["reward"] is None:
        run.grade = Grade.ungraded()
    run.live.phase = "over"
