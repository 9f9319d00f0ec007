"""Samples that are taken again and again during an incident: metrics, queues, and the database's sessions."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Any

import httpx
import psutil
import redis
from prometheus_client.parser import text_string_to_metric_families

from hud_benchmarks.incident_lab.lab.recording import clock

if TYPE_CHECKING:
    from hud_benchmarks.incident_lab.lab.stage import Stage

EVERY_SECONDS = 2.0
KEPT = (
    "http_requests_total", "http_request_seconds_sum", "http_request_seconds_count",
    "db_pool_in_use", "db_pool_waiting", "memo_entries", "process_resident_bytes",
    "messages_done_total",
)  # fmt: skip
SESSIONS = (
    "SELECT application_name AS service, pid, state, wait_event_type, wait_event, "
    "round(extract(epoch FROM now() - xact_start)::numeric, 2)::float AS transaction_seconds, "
    "left(regexp_replace(query, '\\s+', ' ', 'g'), 160) AS query FROM pg_stat_activity "
    "WHERE datname = 'shop' AND application_name <> '' AND state <> 'idle'"
)


async def watch_metrics(stage: Stage) -> None:
    """Collect samples until cancelled."""
    trusted = ssl.create_default_context(cafile=str(stage.authority.file))
    async with httpx.AsyncClient(verify=trusted, timeout=1.5) as client:
        while True:
            services = [
                service for service in stage.cluster.services.values() if service.name != "cache"
            ]
            await asyncio.gather(*(_scrape(stage, client, service) for service in services))
            await asyncio.to_thread(_look_at_queue, stage)
            now = clock()
            for row in await asyncio.to_thread(stage.database.rows, SESSIONS):
                stage.recording.add("pg_stat_activity", time=now, **row)
            await asyncio.sleep(EVERY_SECONDS)


async def _scrape(stage: Stage, client: httpx.AsyncClient, service: Any) -> None:
    container = service.container
    if container is None:
        return
    try:
        text = (await client.get(f"{service.url}/metrics")).text
    except httpx.HTTPError:
        return  # A gap in the curve, as with any collector.
    now = clock()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in KEPT:
                labels = ",".join(
                    f"{name}={value}" for name, value in sorted(sample.labels.items())
                )
                stage.recording.add(
                    "metrics", time=now, service=service.name, container=container.name,
                    metric=sample.name, labels=labels, value=sample.value,
                )  # fmt: skip


def _look_at_queue(stage: Stage) -> None:
    cache = stage.cluster.services["cache"]
    container = cache.container
    if container is None or container.process is None:
        return
    now = clock()
    try:
        with redis.Redis(port=cache.port, socket_timeout=1, socket_connect_timeout=1) as client:
            depths = [(name.decode(), client.llen(name)) for name in client.scan_iter(_type="list")]
            size = psutil.Process(container.process.pid).memory_info().rss
    except (redis.RedisError, psutil.Error):
        return
    samples = [("queue_depth", f"queue={name}", depth) for name, depth in depths]
    for metric, labels, value in [*samples, ("process_resident_bytes", "", size)]:
        stage.recording.add(
            "metrics", time=now, service="cache", container=container.name, metric=metric,
            labels=labels, value=value,
        )  # fmt: skip
