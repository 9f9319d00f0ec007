"""`Members`: an actor that keeps vLLM servers of a model on the cluster, and names them to the platform as they come and go."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hud.client import Client
from hud.errors import HudError
from hud_integrations.ray.cluster import Cluster, answers
from hud_integrations.ray.keeper import KeptCommand
from hud_integrations.ray.package import ray

ROUND_SECONDS = 2.0
REPORT_SECONDS = 3.0
ASK_SECONDS = 60.0
"""Time for the platform to change a model's servers."""


@dataclass(frozen=True)
class MemberSettings:
    """vLLM servers of one model."""

    url: str
    """Address of the platform, as the cluster's nodes reach it."""
    key: str = field(repr=False)
    """API key of an admin: it sets addresses that the platform calls."""
    model_path: str
    """Path of the model's routes."""
    count: int
    server: KeptCommand
    key_env: str | None = None
    """Environment variable of the platform with the servers' key."""
    weights: str | None = None
    """Transfer of full weights, as `hud models vllm` takes it; None: the default."""


class Members:
    """Looks at its servers every `ROUND_SECONDS`; the model is sampled on those that are ready."""

    def __init__(self, settings: MemberSettings) -> None:
        self.settings = settings
        self.cluster = Cluster.of_kept()
        self.stopping = False
        self._client = Client(api_url=settings.url, api_key=settings.key)
        self._named: tuple[str, ...] | None = None
        """The servers that the platform has; None: unknown."""
        self._known = False
        """True once the platform knows the model and the key."""
        self._problem: str | None = None
        self._reports: list[dict[str, Any]] = []
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._work, daemon=True).start()

    def check(self) -> bool:
        """Ask the platform for the model; no server is started before it knows it. Raises its error."""
        asyncio.run_coroutine_threadsafe(self._check(), self._loop).result(ASK_SECONDS)
        return True

    def report(self) -> dict[str, Any]:
        """Return the reports of its servers, and the problem with naming them, if any."""
        ready = len(self._named or ())
        return {
            "name": self.settings.server.name,
            "state": "ended" if self.stopping else "ready" if ready else "starting",
            "servers": self._reports,
            "named": list(self._named or ()),
            "problem": self._problem,
            "said": self._problem or f"{ready} of {self.settings.count} servers sample the model",
            "restarts": 0,
        }

    def stop(self) -> float:
        """Have the platform sample the model itself, then end the servers; returns their notice, in seconds.

        Raises the platform's error: a server that a training samples on is not taken from under it.
        """
        withdrawal = self._put(None)
        asyncio.run_coroutine_threadsafe(withdrawal, self._loop).result(ASK_SECONDS)
        self.stopping = True
        for handle in self._handles().values():
            handle.stop.remote()
        return self.settings.server.notice

    def _work(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._rounds())

    async def _rounds(self) -> None:
        while not self.stopping:
            began = time.monotonic()
            try:
                await self._round()
            except ray.exceptions.RayError as error:
                self._problem = f"{type(error).__name__}: {error}"
            except HudError as error:
                self._problem = str(error)
            except TimeoutError:
                self._problem = f"{self.settings.url} does not answer."
            except BaseException:
                # An actor whose thread has died would look alive: Ray is to restart it.
                traceback.print_exc()
                os._exit(1)
            await asyncio.sleep(max(0.0, ROUND_SECONDS - (time.monotonic() - began)))

    async def _check(self) -> None:
        await self._client.get(self.settings.model_path)
        self._known = True

    async def _round(self) -> None:
        if not self._known:
            await self._check()
        handles = self._handles()
        calls = {name: handle.report.remote() for name, handle in handles.items()}
        results = await asyncio.to_thread(answers, calls, REPORT_SECONDS)
        reports = {name: report for name, report in results.items() if isinstance(report, dict)}
        self._reports = [
            reports.get(name, {"name": name, "state": "starting", "restarts": 0, "said": ""})
            for name in sorted(handles)
        ]
        leaving = await asyncio.to_thread(self.cluster.leaving)
        urls = ready(self._reports, leaving)
        # Where none is left, those that the platform has may come back; there is nothing better to name.
        if urls and urls != self._named and not self.stopping:
            await self._put(urls)
        else:
            self._problem = None

    def _handles(self) -> dict[str, Any]:
        """Return the actors of its servers by name; those that are missing are started."""
        server = self.settings.server
        names = [f"{server.name}/{number}" for number in range(self.settings.count)]
        return {
            name: self.cluster.keeper(name) or self.cluster.start_gang(replace(server, name=name))
            for name in names
        }

    async def _put(self, urls: tuple[str, ...] | None) -> None:
        settings = {} if self.settings.weights is None else {"weights": self.settings.weights}
        named = {"kind": "vllm", "urls": urls, "key_env": self.settings.key_env}
        servers = {**named, "settings": settings}
        put = self._client.put(
            f"{self.settings.model_path}/servers", {"servers": None if urls is None else servers}
        )
        await asyncio.wait_for(put, ASK_SECONDS)
        self._named, self._problem = urls, None


def ready(reports: Sequence[dict[str, Any]], leaving: frozenset[str]) -> tuple[str, ...]:
    """Return the addresses of servers that are ready, in order; those on nodes that end soon only if there are no others."""
    sound = [report for report in reports if report["state"] == "ready"]
    staying = [report for report in sound if report["node"] not in leaving]
    return tuple(report["url"] for report in staying or sound)
