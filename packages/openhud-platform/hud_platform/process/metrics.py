"""Prometheus metrics of a server. Each application has its own registry: a process may have several."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE")
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """Metrics of one application."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "hud_requests",
            "Requests served, by route and status.",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "hud_request_seconds",
            "Time to the first byte of a response.",
            ["method", "route"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.in_flight = Gauge(
            "hud_requests_in_flight", "Requests in flight.", registry=self.registry
        )
        self.tokens = Counter(
            "hud_tokens",
            "Tokens of the gateway, by kind and model: its id, or the dialect of a provider.",
            ["model", "kind"],
            registry=self.registry,
        )
        self.spans = Counter(
            "hud_telemetry_spans", "Spans received from clients.", registry=self.registry
        )

        self.queues = Gauge(
            "hud_queue",
            "Waiting or active work: streams of the engine, uploads of telemetry, rollouts and builds.",
            ["queue"],
            registry=self.registry,
        )
        self.telemetry_bytes = Gauge(
            "hud_telemetry_bytes",
            "Bytes of telemetry uploads in progress.",
            registry=self.registry,
        )

    def render(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self.registry)


class Measured:
    """ASGI middleware that counts and times requests."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        metrics = self.metrics
        started = time.perf_counter()
        status = 500

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                labels = (_method(scope), _route(scope))
                metrics.seconds.labels(*labels).observe(time.perf_counter() - started)
            await send(message)

        metrics.in_flight.inc()
        try:
            await self.app(scope, receive, watched)
        finally:
            metrics.in_flight.dec()
            metrics.requests.labels(_method(scope), _route(scope), str(status)).inc()


def _method(scope: Scope) -> str:
    """Return the method; "other" for one that no route has, as callers can make up any."""
    return scope["method"] if scope["method"] in _METHODS else "other"


def _route(scope: Scope) -> str:
    """Return the template of the route: paths contain ids and would give unbounded labels."""
    route = scope.get("route")
    path = getattr(route, "path_format", None) or getattr(route, "path", None)
    return str(path or "other")
