"""Homes of earlier releases: stored rows are read as before."""

import json
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
import sqlalchemy as sa
from tests.dashboard.recorded import record

from hud.trace import new_id
from hud_platform.models.checkpoint_tree import CLIENT_NAMES
from hud_platform.models.records import BackendConfig
from hud_platform.models.registry import Registry
from hud_platform.store import Store, tables
from hud_platform.store.tables import LOCAL_TEAM

pytestmark = pytest.mark.usefixtures("migrations")
AT = 1_760_000_000_000_000
"""A moment in microseconds since the epoch, as the store has it."""

TOOL_COLUMNS = ("tool_calls", "tool_errors", "tool_time_outs")


def undo_newest(connection, tables=("run_reservations", "limit_levels", "trained_prompts")):
    """Remove what the newest migrations (0024 and later) made."""
    for table in tables:
        connection.execute(sa.text(f"DROP TABLE {table}"))
    connection.execute(sa.text("DROP INDEX runs_of_job"))
    for name in TOOL_COLUMNS:
        connection.execute(sa.text(f"ALTER TABLE runs DROP COLUMN {name}"))
    connection.execute(sa.text("CREATE INDEX runs_of_job ON runs (job_id)"))


def test_models_of_a_tinker_service_and_names_of_its_clients_are_kept(tmp_path):
    store = Store.open(tmp_path)
    settings = {"base_model": "Qwen/Qwen3-8B", "url": None}
    base = {"training": "lora", "lora_rank": 32}
    here, there, node, names = new_id(), new_id(), new_id(), {"weights/a": {"time": "t"}}
    with store.begin() as connection:
        for model, slug, tinker in ((here, "here", None), (there, "there", settings)):
            connection.execute(
                sa.text(
                    "INSERT INTO models (id, team_id, slug, name, folder, kind, created_at, config)"
                    " VALUES (:id, :team, :slug, :slug, '/', 'tinker', :at, :config)"
                ),
                {
                    "id": model,
                    "team": LOCAL_TEAM,
                    "slug": slug,
                    "at": AT,
                    "config": json.dumps({**base, "tinker": tinker}),
                },
            )
        connection.execute(
            sa.text(
                "INSERT INTO checkpoints (id, model_id, step, name, created_at, metrics)"
                " VALUES (:id, :model, 1, 'step-1', :at, :metrics)"
            ),
            {"id": node, "model": here, "at": AT, "metrics": json.dumps({"tinker": names})},
        )
        newer = {
            "jobs": ["called_by", "training_run_id"],
            "samples": ("pictures", "excluded"),
            "runs": ("source", "foreign_id", "reward_rule", "graded_reward", "may_train"),
            "trainer_logprobs": ("reward", "reward_rule"),
            "checkpoints": ("system_prompt",),
        }
        for index in ("ix_jobs_called_by", "ix_jobs_training_run_id"):
            connection.execute(sa.text(f"DROP INDEX {index}"))
        for table, column in [(name, column) for name in newer for column in newer[name]]:
            connection.execute(sa.text(f"ALTER TABLE {table} DROP COLUMN {column}"))
        for table in (
            "run_words",
            "indexed_runs",
            "run_passes",
            "run_calls",
            "saved_views",
            "shared_links",
            "labels",
            "comparisons",
            "outcomes",
            "reward_rules",
            "source_policies",
            "trained_runs",
            "rollout_snapshots",
        ):
            connection.execute(sa.text(f"DROP TABLE {table}"))
        undo_newest(connection)
        connection.execute(sa.text("ALTER TABLE runs_to_index DROP COLUMN queued_at"))
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '0007'"))
    store.close()

    store = Store.open(tmp_path)
    registry = Registry(store, tmp_path, team=LOCAL_TEAM)
    assert registry.model("here").config.backend is None
    moved = registry.model("there").config
    assert moved.backend == BackendConfig(name="tinker", settings=settings)
    assert moved.lora_rank == 32
    assert registry.tree.get(node).metrics == {CLIENT_NAMES: names}
    store.close()


@pytest.mark.sqlite
def test_jobs_of_recorded_training_runs_name_them(tmp_path):
    store = Store.open(tmp_path)
    holder = SimpleNamespace(store=store)
    trained = record(holder, "m training", {"a": [0.5]}, purpose="training")
    scored = record(holder, "m held-out step 1", {"a": [0.5]}, purpose="held_out")
    state = {"jobs": [trained], "scores": [{"job_id": scored}, {}, 7]}
    with store.begin() as connection:
        row = {"id": "a" * 32, "model_id": "b" * 32, "config": {}, "status": "running"}
        times = {"created_at": datetime.now(UTC), "updated_at": datetime.now(UTC)}
        connection.execute(sa.insert(tables.training_runs).values(**row, state=state, **times))
        for name in ("called_by", "training_run_id"):
            connection.execute(sa.text(f"DROP INDEX ix_jobs_{name}"))
            connection.execute(sa.text(f"ALTER TABLE jobs DROP COLUMN {name}"))
        connection.execute(sa.text("ALTER TABLE checkpoints DROP COLUMN system_prompt"))
        connection.execute(sa.text("DROP TABLE comparisons"))
        connection.execute(sa.text("DROP TABLE trained_runs"))
        connection.execute(sa.text("DROP TABLE rollout_snapshots"))
        undo_newest(connection)
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '0017'"))
    store.close()
    store = Store.open(tmp_path)
    named = store.rows(sa.select(tables.jobs.c.id, tables.jobs.c.training_run_id))
    assert {row.id: row.training_run_id for row in named} == {
        trained: "a" * 32,
        scored: "a" * 32,
    }
    store.close()


def test_runs_of_the_newest_training_passes_stay_trained_on(tmp_path):
    store = Store.open(tmp_path)
    runs = sorted(new_id() for _ in range(2))
    with store.begin() as connection:
        for trace, step, model in ((runs[0], 1, "a"), (runs[0], 2, "a"), (runs[1], 1, "b")):
            row = {"trace_id": trace, "step_id": step, "logprobs": b"", "step": 0}
            connection.execute(tables.trainer_logprobs.insert().values(model_id=model * 32, **row))
        connection.execute(sa.text("DROP TABLE trained_runs"))
        connection.execute(sa.text("DROP TABLE rollout_snapshots"))
        undo_newest(connection)
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '0020'"))
    store.close()
    store = Store.open(tmp_path)
    marks = store.rows(sa.select(tables.trained_runs).order_by("model_id"))
    assert [tuple(mark) for mark in marks] == [("a" * 32, runs[0]), ("b" * 32, runs[1])]
    store.close()


def test_servers_of_models_have_a_kind_and_candidates_stay_marked(tmp_path):
    store = Store.open(tmp_path)
    names = {"m": None, "m-candidate-2": "m", "m-candidate-x": "m", "other-candidate-1": "m"}
    ids = {slug: new_id() for slug in names}
    servers = {"urls": ["http://h:8000"], "key_env": None, "weights": "receiver"}
    with store.begin() as connection:
        for slug, base in names.items():
            connection.execute(
                sa.insert(tables.models).values(
                    id=ids[slug],
                    team_id=LOCAL_TEAM,
                    slug=slug,
                    name=slug,
                    folder="/",
                    kind="fork",
                    base_model_id=ids.get(base),
                    created_at=datetime.now(UTC),
                    config={"training": "full", "vllm": servers if base is None else None},
                )
            )
        undo_newest(connection)
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '0022'"))
    store.close()
    store = Store.open(tmp_path)
    registry = Registry(store, tmp_path, team=LOCAL_TEAM)
    kept = registry.model("m").config.servers
    assert (kept.kind, kept.urls) == ("vllm", ("http://h:8000",))
    assert kept.settings == {"weights": "receiver"}
    marked = {slug for slug in names if registry.model(slug).config.candidate}
    assert marked == {"m-candidate-2"}
    store.close()


def test_recorded_runs_have_the_numbers_of_their_tool_calls(tmp_path):
    store = Store.open(tmp_path)
    holder = SimpleNamespace(store=store)
    counts = [{"calls": 9, "error": 2, "time-out": 1}, {"calls": 3}, {"calls": -1}, 7]
    runs = [{"reward": 0.5, "extra": {"tool_calls": value}} for value in counts]
    record(holder, "m", {"a": [*runs, {"reward": 0.5, "extra": {"note": 1}}, 0.5]})
    columns = [tables.runs.c[name] for name in TOOL_COLUMNS]
    query = sa.select(*columns).order_by(tables.runs.c.attempt)
    wanted = [(9, 2, 1), (3, 0, 0), *[(0, 0, 0)] * 4]
    assert [tuple(row) for row in store.rows(query)] == wanted
    with store.begin() as connection:
        undo_newest(connection, tables=())
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '0025'"))
    store.close()
    store = Store.open(tmp_path)
    assert [tuple(row) for row in store.rows(query)] == wanted
    store.close()
