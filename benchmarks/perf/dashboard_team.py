"""What the store of a busy team holds beside its jobs: rows of tasksets, models with trees of checkpoints, training runs
with their curves, keys, the gateway's ledger, the audit log. `dashboard_store.py` writes it with the rest.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import sqlalchemy as sa
from sizes import size

from hud_platform.models.records import ModelConfig
from hud_platform.store import Store, tables
from hud_platform.store.ingest import upsert

ROWS = size(2_000, 120)
"""Tasks of each taskset; jobs played the first of them."""
CHECKPOINTS = size(500, 20)
"""Of each model that is trained, a tenth of them on a branch."""
TRAINING_RUNS, STEPS = size((60, 500), (4, 21))
"""Of each training run."""
REQUESTS = size(40_000, 50)
"""Of the last 24 hours: the turns of the runs of that time."""
AUDITED = size(5_000, 50)
KEYS = 40


def checkpoint_of(model: str, era: int) -> str:
    """Return the checkpoint with which a model's jobs of an era were played."""
    return hashlib.md5(f"{model}{era}".encode()).hexdigest()


def fill_team(
    store: Store,
    team: str,
    tasksets: Sequence[tuple[str, str, Sequence[str]]],
    models: Sequence[str],
    trained: Sequence[str],
) -> None:
    """Write it. `tasksets`: id, name, and the slugs of the tasks that were played."""
    draw, now = random.Random(1), datetime.now(UTC)
    with store.begin() as connection:
        for taskset, name, slugs in tasksets:
            upsert(connection, tables.taskset_rows, _rows(taskset, name, slugs, now))
        for name in models:
            _write_model(connection, draw, team, name, name in trained, now)
        _write_use(connection, draw, team, models, now)


def _rows(taskset: str, name: str, slugs: Sequence[str], now: datetime) -> list[dict[str, Any]]:
    names = [*slugs, *(f"{name}/{number:04d}-unplayed" for number in range(len(slugs), ROWS))]
    return [
        {
            "taskset_id": taskset,
            "slug": slug,
            "version": 1,
            "position": position,
            "row": orjson.dumps(
                {"name": slug, "env": name, "scenario": "solve", "args": {"n": position}}
            ),
            "created_at": round(now.timestamp() * 1e6),
        }
        for position, slug in enumerate(names)
    ]


def _write_model(
    connection: sa.Connection,
    draw: random.Random,
    team: str,
    name: str,
    trained: bool,
    now: datetime,
) -> None:
    model = hashlib.md5(name.encode()).hexdigest()
    nodes = [_node(draw, model, name, number, now) for number in range(CHECKPOINTS * trained)]
    values = {
        "id": model,
        "team_id": team,
        "slug": name,
        "name": name,
        "folder": f"/models/{name}",
        "kind": "local",
        "head_checkpoint_id": nodes[-1]["id"] if nodes else None,
        "config": ModelConfig().model_dump(mode="json"),
        "created_at": now - timedelta(days=30),
    }
    connection.execute(sa.insert(tables.models).values(**values))
    if not trained:
        return
    connection.execute(sa.insert(tables.checkpoints), nodes)
    for number in range(TRAINING_RUNS // 2):
        run = f"{draw.getrandbits(128):032x}"
        began = now - timedelta(hours=9 * number)
        scores = [_score(draw, name, step) for step in range(0, STEPS + 1, 20)]
        values = {
            "id": run,
            "model_id": model,
            "config": {"model": name, "tasks": "incident-triage", "steps": STEPS},
            "status": "finished",
            "next_step": STEPS,
            "state": {"scores": scores},
            "created_at": began,
            "updated_at": began + timedelta(hours=8),
        }
        connection.execute(sa.insert(tables.training_runs).values(**values))
        steps = [
            {"training_run_id": run, "step": step, "metrics": _metrics(draw), "created_at": began}
            for step in range(STEPS)
        ]
        connection.execute(sa.insert(tables.training_metrics), steps)


def _node(draw: random.Random, model: str, name: str, number: int, now: datetime) -> dict[str, Any]:
    branch = number >= CHECKPOINTS * 9 // 10
    parent = number - 1 if number != CHECKPOINTS * 9 // 10 else CHECKPOINTS // 2
    return {
        "id": _node_id(name, number),
        "model_id": model,
        "parent_id": _node_id(name, parent) if number else None,
        "step": number + 1 if not branch else parent + 2,
        "name": f"step-{number + 1:04d}",
        # Most were pruned, as training does.
        "folder": f"/checkpoints/{number}" if number % 10 == 0 else None,
        "created_at": now - timedelta(minutes=40 * (CHECKPOINTS - number)),
        "mean_reward": draw.random(),
        "learning_rate": 1e-5,
        "loss_fn": "ppo",
        "num_traces": 64,
        "num_datums": 64,
        "num_tokens": 26_000,
        "metrics": _metrics(draw),
    }


def _node_id(name: str, number: int) -> str:
    # Every tenth is one that jobs were played with.
    if number % 10 == 0:
        return checkpoint_of(name, number // 10)
    return hashlib.md5(f"{name} step {number}".encode()).hexdigest()


def _score(draw: random.Random, name: str, step: int) -> dict[str, Any]:
    mean = 0.3 + 0.5 * step / STEPS + draw.gauss(0, 0.02)
    known = _node_id(name, min(step, CHECKPOINTS - 1)) if step else None
    return {
        "step": step,
        "mean": mean,
        "low": mean - 0.05,
        "high": mean + 0.05,
        "runs": 100,
        "checkpoint_id": known,
    }


def _metrics(draw: random.Random) -> dict[str, float]:
    names = (
        *("rollout_reward:mean", "sampler_k3:mean", "entropy:mean", "loss:sum", "sampler_gap:mean"),
        *("sampler_gap_p99:max", "policy_lag:mean", "policy_lag:max", "seconds_rollouts:sum"),
        *("seconds_update:sum", "groups_drawn:sum", "groups_without_spread:sum", "grad_norm:mean"),
        *("runs:sum", "failed_rollouts:sum", "tokens:sum", "learning_rate:mean", "clip:mean"),
    )
    return {name: round(draw.random(), 6) for name in names}


def _write_use(
    connection: sa.Connection, draw: random.Random, team: str, models: Sequence[str], now: datetime
) -> None:
    keys = [f"{draw.getrandbits(128):032x}" for _ in range(KEYS)]
    rows = [
        {
            "id": key,
            "team_id": team,
            "user_id": key,
            "name": f"key {number}",
            "digest": hashlib.sha256(key.encode()).hexdigest(),
            "start": f"hud_{key[:4]}",
            "scopes": ["run"],
            "created_at": now - timedelta(days=number),
        }
        for number, key in enumerate(keys)
    ]
    connection.execute(sa.insert(tables.keys), rows)
    requests = [
        {
            "id": f"{draw.getrandbits(128):032x}",
            "team_id": team,
            "key_id": draw.choice(keys),
            "trace_id": None,
            "route": "/v1/chat/completions",
            "model": draw.choice(models),
            "checkpoint": None,
            "status": 200,
            "prompt_tokens": draw.randrange(400, 6_000),
            "completion_tokens": draw.randrange(30, 400),
            "cached_tokens": 0,
            "cost_usd": 0.001,
            "seconds": draw.random() * 4,
            "created_at": round((now.timestamp() - draw.random() * 86_400) * 1e6),
        }
        for _ in range(REQUESTS)
    ]
    upsert(connection, tables.requests, requests)
    audited = [
        {
            "id": f"{draw.getrandbits(128):032x}",
            "team_id": team,
            "key_id": draw.choice(keys),
            "action": draw.choice(["head moved", "taskset changed", "key made", "signed in"]),
            "subject": draw.choice(models),
            "details": {},
            "created_at": now - timedelta(minutes=9 * number),
        }
        for number in range(AUDITED)
    ]
    connection.execute(sa.insert(tables.audit), audited)
