"""`Supervisor`: an actor that keeps as many hosts as the platform's queue needs, one a node."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import traceback
from typing import Any

from hud.client import Client
from hud.errors import HudError
from hud_integrations.ray.cluster import Cluster, answers
from hud_integrations.ray.package import ray
from hud_integrations.ray.placement import FleetSettings, HostState, Node, Scaling, changes, endings

ROUND_SECONDS = 2.0
AVOID_SECONDS = 30.0
"""Time for which a node gets no host after one died there."""
QUEUE_SECONDS = 10.0
REPORT_SECONDS = 2.0
"""Times for which the platform's answer, and those of hosts, are awaited: others are waiting for the round's end."""


class Supervisor:
    """Looks at nodes, hosts and queue every `ROUND_SECONDS`, and changes what differs from what is to be."""

    def __init__(self, settings: FleetSettings) -> None:
        self.settings = settings
        self.cluster = Cluster(settings.name)
        self.stopping = False
        self._scaling = Scaling(settings.least, settings.most, settings.rollouts)
        self._client = Client(api_url=settings.url, api_key=settings.key)
        # Ray restarted it where there are some.
        self._hosts: dict[str, Any] = self.cluster.hosts()
        self._avoid: dict[str, float] = {}
        self._status: dict[str, Any] | None = None
        self._problem: str | None = None
        self._loss: str | None = None
        # One for all rounds: connections to the platform stay open.
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._work, daemon=True).start()

    def status(self) -> dict[str, Any] | None:
        """Return what the last round found; None before the first."""
        return self._status

    def stop(self) -> float:
        """Stop every host, and start none; returns the notice that their rollouts have, in seconds."""
        self.stopping = True
        return self.settings.notice

    def _work(self) -> None:
        while True:
            began = time.monotonic()
            try:
                self._round()
            except ray.exceptions.RayError as error:
                # A node that is lost in the middle of a call: the next round sees what is left.
                self._problem = f"{type(error).__name__}: {error}"
            except BaseException:
                # An actor whose thread has died would look alive: Ray is to restart it.
                traceback.print_exc()
                os._exit(1)
            time.sleep(max(0.0, ROUND_SECONDS - (time.monotonic() - began)))

    def _round(self) -> None:
        # Ray gives the ends of nodes as dates; what is measured here follows no jump of the wall clock.
        now, here, settings = time.time(), time.monotonic(), self.settings
        queue = self._queue()
        wanted = 0 if self.stopping else self._scaling.next(queue, here)
        nodes = self.cluster.nodes(settings.on)
        reports = self._reports(here)
        states: dict[str, HostState] = {
            node: (report or {}).get("state", "starting") for node, report in reports.items()
        }
        if self.stopping:
            planned = endings(nodes, states, now=now, notice=settings.notice)
        else:
            avoid = frozenset(node for node, until in self._avoid.items() if until > here)
            planned = changes(nodes, states, wanted, now=now, notice=settings.notice, avoid=avoid)
        for node in planned.drain:
            self._hosts[node].drain.remote()
        for node, seconds in planned.stop.items():
            self._hosts[node].stop.remote(seconds)
        for node in planned.forget:
            self.cluster.remove(self._hosts.pop(node))
        for place in planned.start:
            self._hosts[place.id] = self.cluster.start_host(place, settings)
        self._status = self._shown(nodes, reports, wanted, queue)

    def _queue(self) -> dict[str, Any] | None:
        """Return the counts of the queue; None while the platform cannot be reached."""

        async def ask() -> Any:
            # Longer than the client's own retries would hold up the hosts.
            return await asyncio.wait_for(self._client.get("/v2/fleet/queue"), QUEUE_SECONDS)

        try:
            queue: dict[str, Any] = self._loop.run_until_complete(ask())
        except TimeoutError:
            self._problem = f"{self.settings.url} does not answer."
        except HudError as error:
            self._problem = str(error)
        else:
            self._problem = None
            return queue
        return None

    def _reports(self, now: float) -> dict[str, dict[str, Any] | None]:
        """Return the reports of hosts; None of those that do not answer. Hosts that died are dropped."""
        calls = {node: host.report.remote() for node, host in self._hosts.items()}
        reports: dict[str, dict[str, Any] | None] = {}
        for node, answer in answers(calls, REPORT_SECONDS).items():
            if isinstance(answer, ray.exceptions.ActorUnavailableError):
                reports[node] = None  # Ray restarts it.
            elif isinstance(answer, ray.exceptions.RayError):
                self.cluster.remove(self._hosts.pop(node))
                self._avoid[node] = now + AVOID_SECONDS
                self._loss = f"{type(answer).__name__}: {str(answer).strip().splitlines()[-1]}"
            else:
                reports[node] = answer
        return reports

    def _shown(
        self,
        nodes: list[Node],
        reports: dict[str, dict[str, Any] | None],
        wanted: int,
        queue: dict[str, Any] | None,
    ) -> dict[str, Any]:
        settings, by_id = self.settings, {node.id: node for node in nodes}
        hosts = [
            {
                "node": by_id[node].shown,
                "labels": dict(by_id[node].labels),
                "node_draining": by_id[node].ends_at is not None,
                **(reports.get(node) or {"state": "starting", "restarts": 0, "said": ""}),
            }
            for node in self._hosts
            if node in by_id
        ]
        return {
            "name": settings.name,
            "url": settings.url,
            "hosts": hosts,
            "wanted": wanted,
            "least": settings.least,
            "most": settings.most,
            "rollouts": settings.rollouts,
            "on": dict(settings.on),
            "nodes": len(nodes),
            "queue": queue,
            "problem": self._problem,
            "last_loss": self._loss,
            "stopping": self.stopping,
        }
