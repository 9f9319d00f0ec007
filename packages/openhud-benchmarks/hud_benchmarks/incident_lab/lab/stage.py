"""One incident: a fresh shop, a quiet while, a fault, a while of trouble, and the recording of it all."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import ssl
import tempfile
from collections.abc import Coroutine
from datetime import timedelta
from pathlib import Path
from time import time
from typing import Any

import httpx
import redis

from hud_benchmarks.incident_lab.lab import snapshot
from hud_benchmarks.incident_lab.lab.certificates import Authority, Certificate
from hud_benchmarks.incident_lab.lab.cluster import Cluster, Service, free_port, python_service
from hud_benchmarks.incident_lab.lab.database import ShopDatabase
from hud_benchmarks.incident_lab.lab.faults import (
    HARMLESS_FLAGS,
    RISKY_FLAGS,
    Fault,
    disturb,
    names,
)
from hud_benchmarks.incident_lab.lab.finding import Finding
from hud_benchmarks.incident_lab.lab.ingest import Ingest
from hud_benchmarks.incident_lab.lab.recording import Recording, clock
from hud_benchmarks.incident_lab.lab.traffic import Traffic
from hud_benchmarks.incident_lab.lab.watching import watch_metrics

QUIET_SECONDS = 16.0
WARM_SECONDS = 3.0
TLS_SERVICES = ("bank", "payments", "catalog")
SERVICES = ("bank", "catalog", "payments", "orders", "storefront", "worker")
PEOPLE = ("mira", "tomas", "ines", "jonas", "aiko", "bela")
QUEUE = "fulfilment"


class Stage:
    """The running shop of one incident, and the levers to work it."""

    def __init__(self, database: ShopDatabase, folder: Path, seed: str) -> None:
        self.database = database
        self.folder = folder
        self.luck = random.Random(seed)
        self.recording = Recording()
        self.ingest = Ingest()
        self.authority = Authority(folder / "certificates")
        self.certificates: dict[str, Certificate] = {}
        self.names = names(self.luck)
        self.flags = {self.names[flag]: False for flag in (*HARMLESS_FLAGS, *RISKY_FLAGS)}
        self.flags_file = folder / "flags.json"
        self.flags_file.write_text(json.dumps(self.flags))
        self.group: asyncio.TaskGroup | None = None
        self.tasks: list[asyncio.Task[Any]] = []
        self.cluster = Cluster(
            folder, self.recording, self.luck,
            {
                "CA_FILE": str(self.authority.file),
                "SENTRY_DSN": self.ingest.dsn,
                "FLAGS_FILE": str(self.flags_file),
                "FULFILMENT_QUEUE": QUEUE,
            },
        )  # fmt: skip
        self.cluster.names = self.names

    async def play(self, fault: Fault) -> Finding:
        """Play the incident; the recording is complete afterwards."""
        self._declare(fault)
        try:
            await self._bring_up()
            async with asyncio.TaskGroup() as group:
                self.group = group
                self.background(self.cluster.watch())
                self.background(watch_metrics(self))
                storefront = self.cluster.services["storefront"].url
                self.background(Traffic(storefront, self.recording, self.luck).run())
                await asyncio.sleep(WARM_SECONDS)
                due = asyncio.get_running_loop().time() + QUIET_SECONDS
                await disturb(self, fault, self.luck, QUIET_SECONDS - 4)
                await asyncio.sleep(due - asyncio.get_running_loop().time())
                if fault.expires is not None:
                    await self._wait_for_expiry(fault.expires)
                began = clock()
                culprit = await fault.inject(self)
                await asyncio.sleep(fault.seconds)
                await snapshot.take(self, began)
                for task in self.tasks:
                    task.cancel()
        finally:
            await self.cluster.end()
            self.ingest.close()
        return fault.finding(culprit)

    def background(self, work: Coroutine[Any, Any, Any]) -> None:
        """Have something go on until the incident ends."""
        assert self.group is not None
        self.tasks.append(self.group.create_task(work))

    async def get(self, service: str, path: str, timeout: float) -> None:
        """Ask a service for something, whatever comes of it."""
        trusted = ssl.create_default_context(cafile=str(self.authority.file))
        url = self.cluster.services[service].url
        async with httpx.AsyncClient(verify=trusted, timeout=timeout) as client:
            with contextlib.suppress(httpx.HTTPError):
                await client.get(url + path)

    async def migrate(self, name: str, statement: str) -> None:
        """Apply a migration."""
        self.database.next_migration += 1
        version = f"{self.database.next_migration:04d}_{name}"
        await asyncio.to_thread(self.database.migrate, version, self.luck.choice(PEOPLE), statement)

    async def deploy(
        self, service: str, message: str, change: tuple[str, str] | None = None
    ) -> str:
        """Bring out a new release of a service, and return it."""
        target = self.cluster.services[service]
        major, minor, patch = (int(part) for part in target.release.split("."))
        target.release = f"{major}.{minor}.{patch + self.luck.randint(1, 3)}"
        target.image = self.cluster.build(service, target.release, change)
        self._record_deploy(service, message, time())
        await self.cluster.start(service)
        await self.cluster.ready(service)
        return target.release

    def set_flag(self, key: str, value: bool, *, force: bool = False) -> None:
        """Turn a flag on or off; with `force` a change is recorded also where it was so already."""
        before = (not value) if force else self.flags[key]
        self.flags[key] = value
        self.flags_file.write_text(json.dumps(self.flags))
        self.recording.add(
            "flag_changes", time=clock(), flag=key, before=str(before).lower(),
            after=str(value).lower(), by=self.luck.choice(PEOPLE),
        )  # fmt: skip

    def push(self, message: str) -> None:
        """Put a message where the worker takes it next."""
        with redis.Redis(port=self.cluster.services["cache"].port) as cache:
            cache.rpush(QUEUE, message)

    def _declare(self, fault: Fault) -> None:
        cache_port = free_port()
        self.cluster.declare(
            Service(
                "cache",
                ["redis-server", "--port", str(cache_port), "--bind", "127.0.0.1", "--save", "",
                 "--appendonly", "no"],
                {}, cache_port, release="7.0",
            )
        )  # fmt: skip
        for name in SERVICES:
            variables = {
                "DATABASE_URL": self.database.url(name),
                "REDIS_URL": f"redis://127.0.0.1:{cache_port}/0",
                "PAYMENTS_TIMEOUT_MS": "2500",
                "DATABASE_POOL_SIZE": "6",
            }
            service = python_service(name, variables=variables, tls=name in TLS_SERVICES)
            service.release = ".".join(str(self.luck.randint(1, 30)) for _ in range(3))
            service.image = self.cluster.build(name, service.release)
            self.cluster.declare(service)
            self._record_deploy(name, "Weekly release", time() - self.luck.randint(2, 9) * 86_400)
            if service.tls and name != fault.expires:
                self._certify(name, timedelta(days=self.luck.randint(2, 80)))
        # Left over from a service that is no more: expired, and nobody uses it.
        self._certify("legacy-mail", timedelta(days=-12))

    async def _bring_up(self) -> None:
        expiring = [name for name in TLS_SERVICES if name not in self.certificates]
        for name in expiring:
            # Long enough for the start; how long it is valid after that does not matter.
            self._certify(name, timedelta(seconds=QUIET_SECONDS + 24))
        await self.cluster.start("cache")
        for name in SERVICES:
            await self.cluster.start(name)
        await asyncio.gather(*(self.cluster.ready(name) for name in SERVICES))

    async def _wait_for_expiry(self, service: str) -> None:
        await asyncio.sleep(max(0.0, self.certificates[service].not_after.timestamp() + 1 - time()))

    def _certify(self, name: str, end: timedelta) -> None:
        issued = self.authority.issue(name, timedelta(days=-60), end)
        self.certificates[name] = issued
        if name in self.cluster.services:
            self.cluster.services[name].variables |= {
                "TLS_CERTIFICATE": str(issued.file),
                "TLS_KEY": str(issued.key),
            }

    def _record_deploy(self, service: str, message: str, at: float) -> None:
        self.recording.add(
            "deployments", time=clock(at),
            id="dep-" + "".join(self.luck.choices("0123456789abcdef", k=8)),
            service=service, release=self.cluster.services[service].release, status="live",
            commit="".join(self.luck.choices("0123456789abcdef", k=8)),
            author=self.luck.choice(PEOPLE), message=message,
        )  # fmt: skip


async def play_incident(
    database: ShopDatabase, fault: Fault, seed: str
) -> tuple[Recording, Finding]:
    """Play an incident from nothing, and return its recording and what is to be found in it."""
    with tempfile.TemporaryDirectory(prefix="incident-") as folder:
        stage = Stage(database, Path(folder), seed)
        await asyncio.to_thread(database.fresh, stage.names)
        finding = await stage.play(fault)
        return stage.recording, finding
