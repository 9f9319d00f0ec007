"""The base of every service: settings, database, cache, flags, calls to others, logs, metrics, error reports.

A service is a process: `frame = Frame("orders")`, routes on `frame.app`, `frame.serve()`. Everything that it
needs to know comes from environment variables, as it would in a container.
"""

from __future__ import annotations

import json
import logging
import os
import ssl
import sys
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import psycopg
import redis
import sentry_sdk
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from psycopg_pool import ConnectionPool
from sentry_sdk.integrations.fastapi import FastApiIntegration
from sentry_sdk.integrations.httpx import HttpxIntegration
from sentry_sdk.integrations.redis import RedisIntegration
from sentry_sdk.integrations.starlette import StarletteIntegration
from starlette.middleware.base import RequestResponseEndpoint

BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 5)


class UpstreamError(Exception):
    """Another service did not do what it was asked."""


class _JsonLines(logging.Formatter):
    """One JSON object for each line, as log collectors like them."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": round(record.created, 3),
            "level": record.levelname,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            line["error"] = f"{type(error).__name__}: {error}"[:400]
        return json.dumps(line)


class Frame:
    """One service: its settings, its connections, its routes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.release = os.environ["RELEASE"]
        self.app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "http_requests", "Requests.", ["route", "status"], registry=self.registry
        )
        self.latency = Histogram(
            "http_request_seconds", "Latency.", ["route"], registry=self.registry, buckets=BUCKETS
        )
        self.pool_in_use = Gauge(
            "db_pool_in_use", "Connections that are lent out.", registry=self.registry
        )
        self.pool_waiting = Gauge(
            "db_pool_waiting", "Requests that wait for a connection.", registry=self.registry
        )
        self.log = logging.getLogger(name)
        self.memo_entries = Gauge(
            "memo_entries", "Results that are remembered.", ["memo"], registry=self.registry
        )
        self.memory = Gauge("process_resident_bytes", "Memory in use.", registry=self.registry)
        self._memos: dict[str, dict[Any, Any]] = {}
        self._flags: tuple[float, dict[str, Any]] = (0.0, {})
        self._prepare_reporting()
        self._prepare_routes()

    @cached_property
    def database(self) -> ConnectionPool:
        """The pool of database connections."""
        return ConnectionPool(
            os.environ["DATABASE_URL"],
            kwargs={
                "application_name": self.name,
                "options": f"-c statement_timeout={os.environ.get('STATEMENT_TIMEOUT_MS', '1200')}",
            },
            min_size=1,
            max_size=int(os.environ.get("DATABASE_POOL_SIZE", "6")),
            timeout=float(os.environ.get("DATABASE_POOL_TIMEOUT", "1.5")),
            open=True,
        )

    @cached_property
    def cache(self) -> redis.Redis:
        """The cache, which carries the queue too."""
        return redis.Redis.from_url(
            os.environ["REDIS_URL"],
            decode_responses=True,
            socket_timeout=3,
            socket_connect_timeout=1,
            client_name=self.name,
        )

    @cached_property
    def http(self) -> httpx.Client:
        """For calls to other services; trusts the shop's own certificate authority."""
        trusted = ssl.create_default_context(cafile=os.environ["CA_FILE"])
        # A connection for each call, as through a balancer: certificates are looked at every time.
        limits = httpx.Limits(max_keepalive_connections=0)
        timeout = float(os.environ.get("HTTP_TIMEOUT", "4"))
        return httpx.Client(verify=trusted, timeout=timeout, limits=limits)

    def call(
        self, service: str, path: str, body: Any = None, *, timeout: float | None = None
    ) -> Any:
        """Call another service: GET, or POST where there is a body. Raises `UpstreamError`."""
        url = os.environ[f"{service.upper()}_URL"] + path
        options: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
        try:
            if body is None:
                answer = self.http.get(url, **options)
            else:
                answer = self.http.post(url, json=body, **options)
        except httpx.HTTPError as error:
            raise UpstreamError(f"{service}: {type(error).__name__}: {error}") from error
        if answer.status_code >= 500:
            raise UpstreamError(f"{service} answered {answer.status_code} to {path.split('?')[0]}")
        if answer.status_code >= 400:
            raise UpstreamError(f"{service} refused {path.split('?')[0]}: {answer.text[:200]}")
        return answer.json()

    def memo(self, name: str, key: Any, make: Callable[[], Any]) -> Any:
        """Return what `make` returned for this key the first time."""
        results = self._memos.setdefault(name, {})
        if key not in results:
            results[key] = make()
        return results[key]

    def flag(self, key: str) -> bool:
        """True where the feature flag is on."""
        path = Path(os.environ["FLAGS_FILE"])
        changed = path.stat().st_mtime
        if changed != self._flags[0]:
            self._flags = changed, json.loads(path.read_text())
        return bool(self._flags[1].get(key, False))

    def note(self, message: str, level: int = logging.INFO, **fields: Any) -> None:
        """Write a line to the log."""
        self.log.log(level, message, extra={"fields": fields})

    def serve(self) -> None:
        """Answer requests until the end."""
        self.note("service starts", release=self.release, container=os.environ["CONTAINER"])
        uvicorn.run(
            self.app,
            host="127.0.0.1",
            port=int(os.environ["PORT"]),
            log_config=None,
            access_log=False,
            ssl_certfile=os.environ.get("TLS_CERTIFICATE"),
            ssl_keyfile=os.environ.get("TLS_KEY"),
        )

    def metrics(self) -> bytes:
        """Return the metrics in the Prometheus text format."""
        if "database" in self.__dict__:
            stats = self.database.get_stats()
            self.pool_in_use.set(stats["pool_size"] - stats["pool_available"])
            self.pool_waiting.set(stats["requests_waiting"])
        for name, results in self._memos.items():
            self.memo_entries.labels(name).set(len(results))
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        self.memory.set(pages * os.sysconf("SC_PAGE_SIZE"))
        return generate_latest(self.registry)

    def _prepare_reporting(self) -> None:
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(_JsonLines())
        self.log.handlers = [handler]
        self.log.propagate = False
        self.log.setLevel(logging.INFO)
        logging.getLogger().setLevel(logging.CRITICAL)
        sentry_sdk.init(
            dsn=os.environ["SENTRY_DSN"],
            release=f"{self.name}@{self.release}",
            environment="production",
            server_name=os.environ["CONTAINER"],
            traces_sample_rate=0.3,
            max_breadcrumbs=12,
            in_app_include=["shop"],
            # Named one by one: looking for everything that could be watched imports all that is installed.
            auto_enabling_integrations=False,
            integrations=[
                StarletteIntegration(),
                FastApiIntegration(),
                RedisIntegration(),
                HttpxIntegration(),
            ],
        )
        sentry_sdk.set_tag("service", self.name)

    def _prepare_routes(self) -> None:
        app = self.app

        @app.get("/healthz")
        def healthz() -> dict[str, str]:
            return {"status": "ok"}

        @app.get("/metrics")
        def metrics() -> Response:
            return Response(self.metrics(), media_type="text/plain")

        @app.middleware("http")
        async def measured(request: Request, go_on: RequestResponseEndpoint) -> Response:
            if request.url.path in ("/healthz", "/metrics"):
                return await go_on(request)
            began = time.perf_counter()
            response = await go_on(request)
            seconds = time.perf_counter() - began
            route = getattr(request.scope.get("route"), "path", request.url.path)
            self.requests.labels(route, str(response.status_code)).inc()
            self.latency.labels(route).observe(seconds)
            if response.status_code >= 500 or seconds > 1:
                self.note(
                    f"{request.method} {request.url.path} -> {response.status_code}",
                    logging.ERROR if response.status_code >= 500 else logging.WARNING,
                    seconds=round(seconds, 3),
                    route=route,
                )
            return response

        @app.exception_handler(UpstreamError)
        async def upstream(_: Request, error: UpstreamError) -> JSONResponse:
            return self._failed(error, 502)

        @app.exception_handler(Exception)
        async def failed(_: Request, error: Exception) -> JSONResponse:
            return self._failed(error, 500)

        for kind in (psycopg.Error, redis.RedisError):
            app.add_exception_handler(kind, failed)

        @app.exception_handler(ValueError)
        async def refused(_: Request, error: ValueError) -> JSONResponse:
            sentry_sdk.capture_exception(error)
            return JSONResponse({"error": str(error)}, status_code=422)

    def _failed(self, error: Exception, status: int) -> JSONResponse:
        sentry_sdk.capture_exception(error)
        self.log.error("request failed", exc_info=error)
        return JSONResponse({"error": type(error).__name__}, status_code=status)
