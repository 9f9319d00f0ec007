"""The first schema. Written out, as all migrations are: what it makes must not move with the code.

Names of keys and indexes follow the convention of `tables.metadata`.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("id", sa.String(length=32), primary_key=True),
        sa.Column("team_id", sa.String(length=32), nullable=False),
        sa.Column("key_id", sa.String(length=32)),
        sa.Column("action", sa.String(length=32), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
    )
    op.create_index("audit_of_team", "audit", ["team_id", "created_at"])
    op.create_table(
        "build_lines",
        sa.Column("build_id", sa.String(length=32), primary_key=True),
        sa.Column("number", sa.Integer(), primary_key=True),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "builds",
        sa.Column("id", sa.String(length=32), primary_key=True),
        sa.Column("team_id", sa.String(length=32), nullable=False, index=True),
        sa.Column("environment_id", sa.String(length=32), index=True),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("version", sa.Integer()),
        sa.Column("archive", sa.Text()),
        sa.Column("folder", sa.Text()),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("manifest", sa.JSON()),
        sa.Column("error", sa.Text()),
        sa.Column("worker", sa.Text()),
        sa.Column("lease_expires_at", sa.BigInteger()),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.BigInteger()),
        sa.Column("ended_at", sa.BigInteger()),
    )
    op.create_table(
        "checkpoints",
        sa.Column("id", sa.String(length=32), primary_key=True),
        sa.Column("model_id", sa.String(length=32), nullable=False, index=True),
        sa.Column("parent_id", sa.String(length=32)),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("folder", sa.Text()),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("mean_reward", sa.Float()),
        sa.Column("learning_rate", sa.Float()),
        sa.Column("loss_fn", sa.String(length=64)),
        sa.Column("num_traces", sa.Integer()),
        sa.Column("num_datums", sa.Integer()),
        sa.Column("num_tokens", sa.Integer()),
        sa.Column("metrics", sa.JSON(), nullable=False),
    )
    op.create_table(
        "device_logins",
        sa.Column("digest", sa.String(length=64), primary_key=True),
        sa.Column("user_code", sa.String(length=16), nullable=False, unique=True),
        sa.Column("client_name", sa.Text(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("key_id", sa.String(length=32)),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("polled_at", sa.BigInteger()),
    )
    op.create_table(
        "environments",
        sa.Column("id", sa.String(length=32), primary_key=True),
        sa.Column("team_id", sa.String(length=32), nullable=False, index=True),
        sa.Column("project_id", sa.String(length=32)),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.UniqueConstraint("team_id", "name", name="uq_environments_team_name"),
    )
    op.create_table(
        "job_models",
        sa.Column("job_id", sa.String(length=32), primary_key=True),
        sa.Column("model", sa.String(length=200), primary_key=True),
        sa.Column("checkpoint", sa.String(length=32), primary_key=True),
        sa.Column("team_id", sa.String(length=32), nullable=False),
    )
    op.create_index("job_models_of_team", "job_models", ["team_id", "model", "checkpoint"])
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=32), primary_key=True),
        sa.Column("team_id", sa.String(length=32), nullable=False, index=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("taskset_id", sa.String(length=32)),
        sa.Column("group_size", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("pid", sa.Integer()),
        sa.Column("process_started", sa.String(length=32)),
        sa.Column("host", sa.Text()),
        sa.Column("extra", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False, index=True),
        sa.Column("ended_at", sa.BigInteger()),
    )
    op.create_table(
        "keys",
        sa.Column("id", sa.String(length=32), primary_key=True),
        sa.Column("team_id", sa.String(length=32), nullable=False, index=True),
        sa.Column("user_id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False, unique=True),
        sa.Column("start", sa.String(length=16), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("requests_per_minute", sa.Integer()),
        sa.Column("tokens_per_minute", sa.Integer()),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger()),
        sa.Column("last_used_at", sa.BigInteger()),
        sa.Column("revoked_at", sa.BigInteger()),
    )
    op.create_table(
        "leases",
        sa.Column("model_id", sa.String(length=32), primary_key=True),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("acquired_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "models",
        sa.Column("id", sa.String(length=32), primary_key=True),
        sa.Column("team_id", sa.String(length=32), nullable=False, index=True),
        sa.Column("slug", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("base_model_id", sa.String(length=32)),
        sa.Column("folder", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("head_checkpoint_id", sa.String(length=32)),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.UniqueConstraint("team_id", "slug", name="uq_models_team_slug"),
    )
    op.create_table(
        "projects",
        sa.Column("id", sa.String(length=32), primary_key=True),
        sa.Column("team_id", sa.String(length=32), nullable=False, index=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("is_default", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.UniqueConstraint("team_id", "name", name="uq_projects_team_name"),
    )
    op.create_table(
        "requests",
        sa.Column("id", sa.String(length=32), primary_key=True),
        sa.Column("team_id", sa.String(length=32), nullable=False),
        sa.Column("key_id", sa.String(length=32)),
        sa.Column("trace_id", sa.String(length=32)),
        sa.Column("route", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("checkpoint", sa.String(length=32)),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("prompt_tokens", sa.Integer(), nullable=False),
        sa.Column("completion_tokens", sa.Integer(), nullable=False),
        sa.Column("cached_tokens", sa.Integer(), nullable=False),
        sa.Column("cost_usd", sa.Float()),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False, index=True),
    )
    op.create_index(
        "requests_of_team",
        "requests",
        ["team_id", "created_at", "key_id", "prompt_tokens", "completion_tokens", "cost_usd"],
    )
    op.create_table(
        "responses",
        sa.Column("id", sa.String(length=64), primary_key=True),
        sa.Column("team_id", sa.String(length=32), nullable=False, index=True),
        sa.Column("messages", sa.LargeBinary(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "rollouts",
        sa.Column("trace_id", sa.String(length=32), primary_key=True),
        sa.Column("team_id", sa.String(length=32), nullable=False, index=True),
        sa.Column("key_id", sa.String(length=32)),
        sa.Column("job_id", sa.String(length=32), index=True),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("worker", sa.Text()),
        sa.Column("lease_expires_at", sa.BigInteger()),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.BigInteger()),
        sa.Column("ended_at", sa.BigInteger()),
    )
    op.create_index(
        "rollouts_queue",
        "rollouts",
        ["status", "team_id", "job_id", "lease_expires_at", "created_at"],
    )
    op.create_table(
        "runs",
        sa.Column("trace_id", sa.String(length=32), primary_key=True),
        sa.Column("team_id", sa.String(length=32), nullable=False),
        sa.Column("job_id", sa.String(length=32)),
        sa.Column("group_id", sa.String(length=32)),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("slug", sa.Text()),
        sa.Column("task", sa.LargeBinary()),
        sa.Column("model", sa.Text()),
        sa.Column("checkpoint", sa.String(length=32)),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("reward", sa.Float()),
        sa.Column("failure_kind", sa.String(length=16)),
        sa.Column("error", sa.Text()),
        sa.Column("stop_reason", sa.String(length=32)),
        sa.Column("content", sa.Text()),
        sa.Column("grade", sa.LargeBinary()),
        sa.Column("extra", sa.LargeBinary()),
        sa.Column("step_count", sa.Integer(), nullable=False),
        sa.Column("turns", sa.Integer(), nullable=False),
        sa.Column("prompt_tokens", sa.Integer(), nullable=False),
        sa.Column("completion_tokens", sa.Integer(), nullable=False),
        sa.Column("cached_tokens", sa.Integer(), nullable=False),
        sa.Column("cost_usd", sa.Float()),
        sa.Column("started_at", sa.BigInteger(), index=True),
        sa.Column("ended_at", sa.BigInteger()),
    )
    op.create_index(
        "runs_of_job",
        "runs",
        [
            "job_id",
            "group_id",
            "status",
            "reward",
            "failure_kind",
            "prompt_tokens",
            "completion_tokens",
            "cost_usd",
            "started_at",
            "ended_at",
        ],
    )
    op.create_index(
        "runs_of_task",
        "runs",
        ["job_id", "slug", "team_id", "model", "reward"],
        postgresql_where=sa.text("length(slug) <= 200 AND length(model) <= 200"),
    )
    op.create_table(
        "samples",
        sa.Column("trace_id", sa.String(length=32), primary_key=True),
        sa.Column("step_id", sa.Integer(), primary_key=True),
        sa.Column("extends", sa.Integer()),
        sa.Column("prompt", sa.LargeBinary(), nullable=False),
        sa.Column("output", sa.LargeBinary(), nullable=False),
        sa.Column("logprobs", sa.LargeBinary(), nullable=False),
        sa.Column("checkpoint", sa.String(length=32)),
        sa.Column("swaps", sa.LargeBinary()),
        sa.Column("temperature", sa.Float(), nullable=False),
    )
    op.create_table(
        "spans",
        sa.Column("trace_id", sa.String(length=32), primary_key=True),
        sa.Column("span_id", sa.String(length=32), primary_key=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("schema", sa.Text()),
        sa.Column("span", sa.LargeBinary(), nullable=False),
        sa.Column("started_at", sa.BigInteger()),
    )
    op.create_table(
        "steps",
        sa.Column("trace_id", sa.String(length=32), primary_key=True),
        sa.Column("step_id", sa.Integer(), primary_key=True),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
    )
    op.create_table(
        "taskset_rows",
        sa.Column("taskset_id", sa.String(length=32), primary_key=True),
        sa.Column("slug", sa.Text(), primary_key=True),
        sa.Column("version", sa.Integer(), primary_key=True),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("row", sa.LargeBinary()),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "tasksets",
        sa.Column("id", sa.String(length=32), primary_key=True),
        sa.Column("team_id", sa.String(length=32), nullable=False, index=True),
        sa.Column("project_id", sa.String(length=32)),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.UniqueConstraint("team_id", "name", name="uq_tasksets_team_name"),
    )
    op.create_table(
        "teams",
        sa.Column("id", sa.String(length=32), primary_key=True),
        sa.Column("name", sa.Text(), nullable=False, unique=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "trainer_logprobs",
        sa.Column("trace_id", sa.String(length=32), primary_key=True),
        sa.Column("step_id", sa.Integer(), primary_key=True),
        sa.Column("logprobs", sa.LargeBinary(), nullable=False),
        sa.Column("model_id", sa.String(length=32), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("checkpoint", sa.String(length=32)),
    )
    op.create_table(
        "training_metrics",
        sa.Column("training_run_id", sa.String(length=32), primary_key=True),
        sa.Column("step", sa.Integer(), primary_key=True),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "training_runs",
        sa.Column("id", sa.String(length=32), primary_key=True),
        sa.Column("model_id", sa.String(length=32), nullable=False, index=True),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("next_step", sa.Integer(), nullable=False),
        sa.Column("state", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "web_sessions",
        sa.Column("digest", sa.String(length=64), primary_key=True),
        sa.Column("key_id", sa.String(length=32), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
    )
