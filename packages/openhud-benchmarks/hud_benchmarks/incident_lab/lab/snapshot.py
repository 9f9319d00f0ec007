"""The state at the end of an incident: in the database, the cache, the cluster, the tracker, the logs."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from time import time
from typing import TYPE_CHECKING, Any

import redis

from hud_benchmarks.incident_lab.lab import paging
from hud_benchmarks.incident_lab.lab.events import add_events
from hud_benchmarks.incident_lab.lab.recording import clock

if TYPE_CHECKING:
    from hud_benchmarks.incident_lab.lab.stage import Stage

CATALOG = {
    "pg_indexes": "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'",
    "pg_stat_user_tables": "SELECT relname, n_live_tup, seq_scan, seq_tup_read, idx_scan, n_tup_ins, n_tup_upd "
    "FROM pg_stat_user_tables",
    "pg_stat_user_indexes": "SELECT relname, indexrelname, idx_scan, idx_tup_read FROM pg_stat_user_indexes",
    "pg_settings": "SELECT name, setting, unit FROM pg_settings WHERE name IN ('max_connections', "
    "'shared_buffers', 'work_mem', 'statement_timeout', 'log_min_duration_statement', 'jit', 'server_version')",
    "pg_roles": "SELECT rolname, rolcanlogin, rolconnlimit FROM pg_roles WHERE rolname LIKE 'shop%'",
    "pg_locks": "SELECT a.application_name AS service, l.mode, l.granted, count(*) AS locks FROM pg_locks l "
    "JOIN pg_stat_activity a USING (pid) WHERE a.datname = 'shop' AND a.application_name <> '' GROUP BY 1, 2, 3",
    "pg_columns": "SELECT table_name, column_name, data_type, is_nullable FROM information_schema.columns "
    "WHERE table_schema = 'public'",
    "pg_constraints": "SELECT conrelid::regclass::text AS table_name, conname, "
    "pg_get_constraintdef(oid) AS definition FROM pg_constraint WHERE connamespace = 'public'::regnamespace",
    "pg_sizes": "SELECT relname, pg_total_relation_size(relid) AS bytes FROM pg_stat_user_tables",
    "pg_grants": "SELECT grantee, table_name, string_agg(privilege_type, ',') AS privileges FROM "
    "information_schema.role_table_grants WHERE grantee LIKE 'shop%' GROUP BY 1, 2",
    "pg_connections": "SELECT application_name AS service, state, count(*) AS connections FROM pg_stat_activity "
    "WHERE datname = 'shop' AND application_name <> '' GROUP BY 1, 2",
    "pg_database": "SELECT xact_commit, xact_rollback, blks_read, blks_hit, deadlocks, temp_files FROM "
    "pg_stat_database WHERE datname = 'shop'",
    "pg_sequences": "SELECT sequencename, data_type, last_value, max_value FROM pg_sequences",
    "schema_migrations": "SELECT version, author, applied_at, statement FROM schema_migrations ORDER BY version",
    "orders_by_status": "SELECT status, count(*) AS orders FROM orders WHERE id > 160000 GROUP BY 1",
    "orders_sample": "SELECT * FROM orders ORDER BY id DESC LIMIT 20",
    "payments_sample": "SELECT * FROM payments ORDER BY id DESC LIMIT 20",
    "products_sample": "SELECT * FROM products ORDER BY id LIMIT 20",
    "customers_sample": "SELECT * FROM customers ORDER BY id LIMIT 20",
    "shipments_sample": "SELECT * FROM shipments ORDER BY id DESC LIMIT 20",
}
QUERIES = {
    "orders: latest by region": "SELECT c.id, o.id FROM customers c CROSS JOIN LATERAL (SELECT id FROM orders "
    "WHERE customer_id = c.id ORDER BY created_at DESC LIMIT 1) o WHERE c.region = 'region-7'",
    "orders: deliveries of a customer": "SELECT o.id, s.carrier FROM orders o CROSS JOIN LATERAL (SELECT carrier "
    "FROM shipments WHERE order_id = o.id ORDER BY id DESC LIMIT 1) s WHERE o.customer_id = 17",
    "payments: receipts": "SELECT p.bank_reference FROM unnest('{1,2,3}'::bigint[]) w(id) CROSS JOIN LATERAL "
    "(SELECT bank_reference FROM payments WHERE order_id = w.id ORDER BY created_at DESC LIMIT 1) p",
    "catalog: category": "SELECT * FROM products WHERE category = 'tea' ORDER BY id LIMIT 20",
    "catalog: product": "SELECT * FROM products WHERE id = 7",
    "worker: ship": "UPDATE orders SET status = 'shipped' WHERE id = 7",
}
MOST_LOG_LINES = 120
"""For each container: the first half and the last half of these."""


async def take(stage: Stage, began: str) -> None:
    """Add everything to the stage's recording; `began` is when the fault was injected."""
    await asyncio.to_thread(_database, stage)
    await asyncio.to_thread(_cache, stage)
    _cluster(stage)
    _logs(stage)
    add_events(stage.recording, stage.ingest)
    stage.recording.add_all(
        "flags",
        [{"flag": key, "enabled": str(value).lower()} for key, value in stage.flags.items()],
    )
    paging.add_page(stage.recording, began)


def _database(stage: Stage) -> None:
    recording, database = stage.recording, stage.database
    for table, query in CATALOG.items():
        recording.add_all(table, database.rows(query))
    for name, query in QUERIES.items():
        plan = [row["QUERY PLAN"] for row in database.rows(f"EXPLAIN {query}")]
        recording.add("pg_plans", query=name, statement=query, plan="\n".join(plan))
    for at, service, message in list(database.logged())[-400:]:
        if service:
            recording.add(
                "pg_log", time=at, service=service, message=" ".join(message.split())[:260]
            )


def _cache(stage: Stage) -> None:
    recording = stage.recording
    port = stage.cluster.services["cache"].port
    options: dict[str, Any] = {"socket_connect_timeout": 1, "decode_responses": True}
    with redis.Redis(port=port, **options) as client:
        try:
            info = client.info()
        except redis.RedisError as error:
            recording.add("cache_info", field="error", value=f"{type(error).__name__}: {error}")
            return
        wanted = ("redis_version", "connected_clients", "used_memory_human", "maxmemory", "evicted_keys",
                  "keyspace_hits", "keyspace_misses", "blocked_clients", "uptime_in_seconds")  # fmt: skip
        recording.add_all("cache_info", [{"field": name, "value": info[name]} for name in wanted])
        for key in sorted(client.scan_iter(count=1000)):
            kind = client.type(key)
            if kind == "list":
                messages = client.lrange(key, 0, -1)
                recording.add(
                    "cache_keys", key=key, type=kind, size=len(messages), ttl=client.ttl(key)
                )
                for position, text in enumerate(reversed(messages)):
                    if position < 60:
                        recording.add("queue_messages", queue=key, position=position, message=text)
            elif len(recording.rows["cache_keys"]) < 40:
                recording.add("cache_keys", key=key, type=kind, size=1, ttl=client.ttl(key))
        for client_row in client.client_list():
            recording.add(
                "cache_clients",
                name=client_row["name"],
                command=client_row["cmd"],
                idle=client_row["idle"],
            )
        for entry in client.slowlog_get(10):
            recording.add(
                "cache_slowlog", command=str(entry["command"])[:120], microseconds=entry["duration"]
            )


def _cluster(stage: Stage) -> None:
    recording = stage.recording
    now = time()
    for service in stage.cluster.services.values():
        recording.add(
            "services", service=service.name, release=service.release, port=service.port,
            tls=str(service.tls).lower(), memory_limit_mib=service.memory_limit // 2**20,
            replicas=1, ready=int(service.container is not None and service.container.state == "Running"),
        )  # fmt: skip
        for container in [*service.past, *([service.container] if service.container else [])]:
            recording.add(
                "containers", container=container.name, service=service.name, state=container.state,
                reason=container.reason, last_reason=container.last_reason,
                exit_code=container.exit_code, restarts=container.restarts,
                started=clock(container.started), age_seconds=int(now - container.created),
            )  # fmt: skip
        for name, value in {**service.variables, "RELEASE": service.release}.items():
            shown = value if not value.startswith("/") else "/etc/" + value.rsplit("/", 1)[1]
            recording.add("variables", service=service.name, name=name, value=shown)
    for certificate in stage.certificates.values():
        users = certificate.name if certificate.name in stage.cluster.services else ""
        recording.add(
            "certificates", secret=f"tls-{certificate.name}", serial=certificate.serial, mounted_by=users,
            not_before=clock(certificate.not_before.timestamp()), not_after=clock(certificate.not_after.timestamp()),
        )  # fmt: skip


def _logs(stage: Stage) -> None:
    for service in stage.cluster.services.values():
        for container in [*service.past, *([service.container] if service.container else [])]:
            lines = container.log.read_text(errors="replace").splitlines()
            half = MOST_LOG_LINES // 2
            if len(lines) > MOST_LOG_LINES:
                lines = lines[:half] + lines[-half:]
            for line in lines:
                stage.recording.add(
                    "logs", **_log_line(line), service=service.name, container=container.name
                )


def _log_line(line: str) -> dict[str, Any]:
    try:
        fields = json.loads(line)
        at = datetime.fromtimestamp(fields.pop("time"), UTC).timestamp()
        level, message = fields.pop("level"), fields.pop("message")
    except (ValueError, KeyError, TypeError, AttributeError):
        return {"time": "", "level": "", "message": line[:300]}
    rest = " ".join(f"{name}={value}" for name, value in fields.items())
    return {"time": clock(at), "level": level, "message": f"{message} {rest}".strip()[:420]}
