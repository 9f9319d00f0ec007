"""Tables of the store. Ids are 32 hexadecimal digits; times are UTC."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.types import TypeDecorator

from hud.trace.recorded_time import microseconds

LOCAL_TEAM = "0" * 32
"""Team of a platform without keys: the users of this machine."""
LONGEST_MODEL = 200
"""Maximum length of a model's name for finding jobs by it; runs may have longer names."""
LARGEST_REWARD = 1e100
"""Largest size of a stored reward: sums of squares over jobs stay within floats."""

RUN_COUNTS = (
    *("step_count", "turns", "prompt_tokens", "completion_tokens", "cached_tokens"),
    *("tool_calls", "tool_errors", "tool_time_outs"),
)
"""Columns of `runs` that count from 0."""

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)


LATEST = 253_000_000 * 10**9
"""Latest stored time, in microseconds since 1970: a year before 9999, which every time zone can show."""


class Moment(TypeDecorator[datetime]):
    """Time in UTC, stored as microseconds since 1970: exact, sortable, and cheap to insert in bulk."""

    impl = sa.BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> int | None:
        del dialect
        return None if value is None else microseconds(value)

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> datetime | None:
        del dialect
        return None if value is None else datetime.fromtimestamp(value / 1e6, UTC)


jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("team_id", sa.String(32), nullable=False, default=LOCAL_TEAM, index=True),
    sa.Column("name", sa.Text, nullable=False),
    # One of `hud.trace.recording.job_purpose.PURPOSES`.
    sa.Column("purpose", sa.String(16), nullable=False, default="evaluation"),
    sa.Column("taskset_id", sa.String(32)),
    # Job whose runs called those of this one, of a subagent; NULL: others, and jobs of earlier versions.
    sa.Column("called_by", sa.String(32), index=True),
    # Training run that learns from its runs, or that it scores.
    sa.Column("training_run_id", sa.String(32), index=True),
    sa.Column("group_size", sa.Integer, nullable=False, default=1),
    sa.Column("status", sa.String(16), nullable=False, default="running"),
    sa.Column("pid", sa.Integer),
    sa.Column("process_started", sa.String(32)),
    sa.Column("host", sa.Text),
    sa.Column("extra", sa.JSON, nullable=False, default=dict),
    sa.Column("created_at", Moment, nullable=False, index=True),
    sa.Column("ended_at", Moment),
)

runs = sa.Table(
    "runs",
    metadata,
    sa.Column("trace_id", sa.String(32), primary_key=True),
    # Without an index: runs are found by job or trace, and the query planner, without statistics on teams, would choose
    # this index over better ones.
    sa.Column("team_id", sa.String(32), nullable=False, default=LOCAL_TEAM),
    sa.Column("job_id", sa.String(32)),
    sa.Column("group_id", sa.String(32)),
    sa.Column("attempt", sa.Integer, nullable=False, default=0),
    # Format that the run was imported from (an entry point of `hud.sources`), and its id there; NULL: recorded by OpenHUD.
    sa.Column("source", sa.String(32)),
    sa.Column("foreign_id", sa.Text),
    # False: no training may use it, by the policy of its source.
    sa.Column("may_train", sa.Boolean),
    sa.Column("slug", sa.Text),
    sa.Column("task", sa.LargeBinary),
    sa.Column("model", sa.Text),
    # Checkpoint of the first turn; NULL: no policy of this platform played, or the first turn has not ended.
    sa.Column("checkpoint", sa.String(32)),
    sa.Column("status", sa.String(16), nullable=False, default="running"),
    sa.Column("reward", sa.Float),
    # Version of the rule over outcomes that the reward is of, and the grade's own reward; NULL, NULL: the reward is the grade's.
    sa.Column("reward_rule", sa.Integer),
    sa.Column("graded_reward", sa.Float),
    sa.Column("failure_kind", sa.String(16)),
    sa.Column("error", sa.Text),
    sa.Column("stop_reason", sa.String(32)),
    sa.Column("content", sa.Text),
    sa.Column("grade", sa.LargeBinary),
    sa.Column("extra", sa.LargeBinary),
    sa.Column("step_count", sa.Integer, nullable=False, default=0),
    sa.Column("turns", sa.Integer, nullable=False, default=0),
    sa.Column("prompt_tokens", sa.Integer, nullable=False, default=0),
    sa.Column("completion_tokens", sa.Integer, nullable=False, default=0),
    sa.Column("cached_tokens", sa.Integer, nullable=False, default=0),
    # Calls of tools, those that failed, and those that reached their time-out, which are no `tool_errors`: see `tool_counts`.
    sa.Column("tool_calls", sa.Integer, nullable=False, default=0),
    sa.Column("tool_errors", sa.Integer, nullable=False, default=0),
    sa.Column("tool_time_outs", sa.Integer, nullable=False, default=0),
    sa.Column("cost_usd", sa.Float),
    sa.Column("started_at", Moment, index=True),
    sa.Column("ended_at", Moment),
    # Covering index for the sums of jobs: the rows are long.
    sa.Index(
        "runs_of_job",
        "job_id",
        "group_id",
        "status",
        "reward",
        "failure_kind",
        "prompt_tokens",
        "completion_tokens",
        "tool_calls",
        "tool_errors",
        "tool_time_outs",
        "cost_usd",
        "started_at",
        "ended_at",
    ),
    # Covering index for the difficulty of tasks.
    sa.Index(
        "runs_of_task",
        # First column: an index that begins with the team would be chosen for every query with a team.
        "job_id",
        "slug",
        "team_id",
        "model",
        "reward",
        # PostgreSQL refuses long values in an index.
        postgresql_where=sa.text("length(slug) <= 200 AND length(model) <= 200"),
    ),
)

outcomes = sa.Table(
    "outcomes",
    metadata,
    # What became known of runs after their end; append-only. `hud_platform.store.outcomes` makes rewards of them.
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("team_id", sa.String(32), nullable=False),
    sa.Column("trace_id", sa.String(32), nullable=False),
    sa.Column("name", sa.String(200), nullable=False),
    sa.Column("value", sa.Float, nullable=False),
    # Reporter of the value, such as a person, a system, or "exit".
    sa.Column("source", sa.Text),
    # Earlier outcome that this one corrects.
    sa.Column("supersedes", sa.String(32)),
    sa.Column("created_at", Moment, nullable=False),
    sa.Index("outcomes_of_trace", "trace_id", "created_at"),
)

reward_rules = sa.Table(
    "reward_rules",
    metadata,
    # Versions of a team's rules: the newest of a job holds for its runs, else the newest of all jobs (job_id "").
    sa.Column("team_id", sa.String(32), primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("job_id", sa.String(32), nullable=False),
    sa.Column("rule", sa.JSON, nullable=False),
    sa.Column("created_at", Moment, nullable=False),
)

source_policies = sa.Table(
    "source_policies",
    metadata,
    sa.Column("team_id", sa.String(32), primary_key=True),
    # An entry point of `hud.sources`, or otlp.
    sa.Column("source", sa.String(32), primary_key=True),
    sa.Column("redact", sa.JSON, nullable=False),
    # NULL: for ever.
    sa.Column("keep_days", sa.Integer),
    sa.Column("may_train", sa.Boolean, nullable=False),
)

job_models = sa.Table(
    "job_models",
    metadata,
    # Models and checkpoints of a job's runs, for finding jobs by them.
    sa.Column("job_id", sa.String(32), primary_key=True),
    sa.Column("model", sa.String(LONGEST_MODEL), primary_key=True),
    # "": no checkpoint of this platform, or none yet.
    sa.Column("checkpoint", sa.String(32), primary_key=True),
    sa.Column("team_id", sa.String(32), nullable=False),
    sa.Index("job_models_of_team", "team_id", "model", "checkpoint"),
)

steps = sa.Table(
    "steps",
    metadata,
    sa.Column("trace_id", sa.String(32), primary_key=True),
    sa.Column("step_id", sa.Integer, primary_key=True),
    sa.Column("payload", sa.LargeBinary, nullable=False),
)

indexed_runs = sa.Table(
    "indexed_runs",
    metadata,
    # Runs of the full-text index `run_words`, with the numbers that a search compares: see `hud_platform.search`.
    # Id of the run in the queue, and of its words in the index.
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("trace_id", sa.String(32), nullable=False, unique=True),
    sa.Column("team_id", sa.String(32), nullable=False),
    sa.Column("reward", sa.Float),
    sa.Column("turns", sa.Integer, nullable=False),
    sa.Column("tokens", sa.Integer, nullable=False),
    sa.Column("cost", sa.Float),
    sa.Column("seconds", sa.Float),
    sa.Index("indexed_runs_of_team", "team_id", "id"),
)

runs_to_index = sa.Table(
    "runs_to_index",
    metadata,
    # Ids are never reused: their order is the order of recording.
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("trace_id", sa.String(32), nullable=False, unique=True),
    sa.Column("team_id", sa.String(32), nullable=False),
    # Of the last change, in microseconds: indexing that read the run earlier does not remove it from the queue.
    sa.Column("queued_at", sa.BigInteger, nullable=False),
    sa.Index("runs_to_index_of_team", "team_id", "id"),
    sqlite_autoincrement=True,
)

spans = sa.Table(
    "spans",
    metadata,
    sa.Column("trace_id", sa.String(32), primary_key=True),
    sa.Column("span_id", sa.String(32), primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    # hud.robot.step.v1, hud.filetracking.v1, ...; NULL: a span of a program, such as a timed function.
    sa.Column("schema", sa.Text),
    sa.Column("span", sa.LargeBinary, nullable=False),
    sa.Column("started_at", Moment),
)

samples = sa.Table(
    "samples",
    metadata,
    sa.Column("trace_id", sa.String(32), primary_key=True),
    sa.Column("step_id", sa.Integer, primary_key=True),
    # Step whose prompt and output are the prefix of this prompt; NULL: the full prompt is stored.
    sa.Column("extends", sa.Integer),
    sa.Column("prompt", sa.LargeBinary, nullable=False),
    sa.Column("output", sa.LargeBinary, nullable=False),
    sa.Column("logprobs", sa.LargeBinary, nullable=False),
    sa.Column("checkpoint", sa.String(32)),
    # JSON, [[position, checkpoint], ...]; NULL: the weights of one checkpoint sampled all tokens.
    sa.Column("swaps", sa.LargeBinary),
    # JSON, [{start, tokens, sha256, pixels, blob}, ...]: the prompt's pictures after those of the step that it extends.
    sa.Column("pictures", sa.LargeBinary),
    sa.Column("temperature", sa.Float, nullable=False, default=1.0),
    # Reason why it is not trained on; NULL: it is.
    sa.Column("excluded", sa.Text),
)

trainer_logprobs = sa.Table(
    "trainer_logprobs",
    metadata,
    # Logprobs that the newest training pass over a run computed for the tokens of its samples.
    sa.Column("trace_id", sa.String(32), primary_key=True),
    sa.Column("step_id", sa.Integer, primary_key=True),
    # One value for each output token; NaN: not trained on.
    sa.Column("logprobs", sa.LargeBinary, nullable=False),
    sa.Column("model_id", sa.String(32), nullable=False),
    # Optimizer steps of the weights, and their checkpoint; NULL: the base weights.
    sa.Column("step", sa.Integer, nullable=False),
    sa.Column("checkpoint", sa.String(32)),
    # Reward that was trained on, and the version of its rule; NULL, NULL: none, or from a payload without a run.
    sa.Column("reward", sa.Float),
    sa.Column("reward_rule", sa.Integer),
)

trained_runs = sa.Table(
    "trained_runs",
    metadata,
    # Runs over which a training pass of a model went, the newest or an earlier one.
    sa.Column("model_id", sa.String(32), primary_key=True),
    sa.Column("trace_id", sa.String(32), primary_key=True, index=True),
)

trained_prompts = sa.Table(
    "trained_prompts",
    metadata,
    # Digests of the prompts that a model was trained on without a recorded task: see `prompt_digests`.
    sa.Column("model_id", sa.String(32), primary_key=True),
    sa.Column("digest", sa.BigInteger, primary_key=True, autoincrement=False),
)

models = sa.Table(
    "models",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("team_id", sa.String(32), nullable=False, default=LOCAL_TEAM, index=True),
    sa.Column("slug", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("base_model_id", sa.String(32)),
    sa.Column("folder", sa.Text, nullable=False),
    sa.Column("kind", sa.String(32), nullable=False),
    sa.Column("head_checkpoint_id", sa.String(32)),
    sa.Column("config", sa.JSON, nullable=False, default=dict),
    sa.Column("created_at", Moment, nullable=False),
    sa.UniqueConstraint("team_id", "slug", name="uq_models_team_slug"),
)

checkpoints = sa.Table(
    "checkpoints",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("model_id", sa.String(32), nullable=False, index=True),
    sa.Column("parent_id", sa.String(32)),
    sa.Column("step", sa.Integer, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("folder", sa.Text),
    sa.Column("created_at", Moment, nullable=False),
    sa.Column("mean_reward", sa.Float),
    sa.Column("learning_rate", sa.Float),
    sa.Column("loss_fn", sa.String(64)),
    sa.Column("num_traces", sa.Integer),
    sa.Column("num_datums", sa.Integer),
    sa.Column("num_tokens", sa.Integer),
    sa.Column("metrics", sa.JSON, nullable=False, default=dict),
    sa.Column("system_prompt", sa.Text),
)

leases = sa.Table(
    "leases",
    metadata,
    sa.Column("model_id", sa.String(32), primary_key=True),
    sa.Column("holder", sa.Text, nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("acquired_at", Moment, nullable=False),
    sa.Column("expires_at", Moment, nullable=False),
)

training_runs = sa.Table(
    "training_runs",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("model_id", sa.String(32), nullable=False, index=True),
    sa.Column("config", sa.JSON, nullable=False),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("next_step", sa.Integer, nullable=False, default=0),
    sa.Column("state", sa.JSON, nullable=False, default=dict),
    sa.Column("created_at", Moment, nullable=False),
    sa.Column("updated_at", Moment, nullable=False),
)

training_metrics = sa.Table(
    "training_metrics",
    metadata,
    sa.Column("training_run_id", sa.String(32), primary_key=True),
    sa.Column("step", sa.Integer, primary_key=True),
    sa.Column("metrics", sa.JSON, nullable=False),
    sa.Column("created_at", Moment, nullable=False),
)

# -- people ------------------------------------------------------------------------------------------------

saved_views = sa.Table(
    "saved_views",
    metadata,
    # Lists of the dashboard with their filters, by name.
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("team_id", sa.String(32), nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    # Path and query of the page.
    sa.Column("address", sa.Text, nullable=False),
    sa.Column("created_at", Moment, nullable=False),
    sa.UniqueConstraint("team_id", "name", name="uq_saved_views_team_name"),
)

shared_links = sa.Table(
    "shared_links",
    metadata,
    # Read-only links to one job, which need no key.
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("team_id", sa.String(32), nullable=False),
    sa.Column("job_id", sa.String(32), nullable=False, index=True),
    # Key whose holder made the link; its revocation ends the link.
    sa.Column("key_id", sa.String(32)),
    sa.Column("created_at", Moment, nullable=False),
    sa.Column("expires_at", Moment, nullable=False),
    sa.Column("revoked_at", Moment),
)

labels = sa.Table(
    "labels",
    metadata,
    # Labels, notes and tags: one for each subject, name and rater.
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("team_id", sa.String(32), nullable=False),
    # run, job, checkpoint.
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("subject_id", sa.String(32), nullable=False),
    sa.Column("name", sa.String(64), nullable=False),
    # NULL: a tag.
    sa.Column("value", sa.Float),
    sa.Column("note", sa.Text),
    # Name of the person's key, or of the program.
    sa.Column("rater", sa.String(200), nullable=False),
    sa.Column("created_at", Moment, nullable=False),
    sa.UniqueConstraint("subject_id", "name", "rater", name="uq_labels_subject_name_rater"),
    sa.Index("labels_of_team", "team_id", "kind", "name", "created_at"),
)

comparisons = sa.Table(
    "comparisons",
    metadata,
    # Comparisons of two runs of one task; append-only: the newest of a rater on two runs counts.
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("team_id", sa.String(32), nullable=False),
    sa.Column("left_id", sa.String(32), nullable=False),
    sa.Column("right_id", sa.String(32), nullable=False),
    # Criterion.
    sa.Column("name", sa.String(64), nullable=False),
    # left, right, tie, skip.
    sa.Column("choice", sa.String(8), nullable=False),
    # The sides were in random order: the choice counts for the share of each side.
    sa.Column("shuffled", sa.Boolean, nullable=False),
    sa.Column("rater", sa.String(200), nullable=False),
    sa.Column("created_at", Moment, nullable=False),
    sa.Index("comparisons_of_team", "team_id", "name", "created_at"),
)

# -- access control ------------------------------------------------------------------------------------

teams = sa.Table(
    "teams",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("name", sa.Text, nullable=False, unique=True),
    sa.Column("created_at", Moment, nullable=False),
)

keys = sa.Table(
    "keys",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("team_id", sa.String(32), nullable=False, index=True),
    # Stable for a person: clients associate folders with it.
    sa.Column("user_id", sa.String(32), nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    # The key that confirmed it, of a login, or made it, if that has limits: it shares its limits, and ends with it.
    sa.Column("parent_id", sa.String(32), index=True),
    # SHA-256 of the key: a key is 256 random bits, so that a slow hash would add nothing.
    sa.Column("digest", sa.String(64), nullable=False, unique=True),
    sa.Column("start", sa.String(16), nullable=False),
    sa.Column("scopes", sa.JSON, nullable=False),
    sa.Column("requests_per_minute", sa.Integer),
    sa.Column("tokens_per_minute", sa.Integer),
    sa.Column("created_at", Moment, nullable=False),
    sa.Column("expires_at", Moment),
    sa.Column("last_used_at", Moment),
    sa.Column("revoked_at", Moment),
)

web_sessions = sa.Table(
    "web_sessions",
    metadata,
    # SHA-256 of the secret in the browser's cookie.
    sa.Column("digest", sa.String(64), primary_key=True),
    sa.Column("key_id", sa.String(32), nullable=False),
    sa.Column("created_at", Moment, nullable=False),
    sa.Column("expires_at", Moment, nullable=False),
)

device_logins = sa.Table(
    "device_logins",
    metadata,
    sa.Column("digest", sa.String(64), primary_key=True),
    sa.Column("user_code", sa.String(16), nullable=False, unique=True),
    sa.Column("client_name", sa.Text, nullable=False),
    sa.Column("status", sa.String(16), nullable=False),
    # Key that confirmed the login; the new key is created when the client collects it.
    sa.Column("key_id", sa.String(32)),
    sa.Column("created_at", Moment, nullable=False),
    sa.Column("expires_at", Moment, nullable=False),
    sa.Column("polled_at", Moment),
)

audit = sa.Table(
    "audit",
    metadata,
    # Audit log, append-only: written by the routes.
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("team_id", sa.String(32), nullable=False),
    # NULL: a request without a key.
    sa.Column("key_id", sa.String(32)),
    sa.Column("action", sa.String(32), nullable=False),
    sa.Column("subject", sa.Text, nullable=False),
    sa.Column("details", sa.JSON, nullable=False, default=dict),
    sa.Column("created_at", Moment, nullable=False),
    sa.Index("audit_of_team", "team_id", "created_at"),
)

projects = sa.Table(
    "projects",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("team_id", sa.String(32), nullable=False, index=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("description", sa.Text, nullable=False, default=""),
    sa.Column("is_default", sa.Boolean, nullable=False, default=False),
    sa.Column("created_at", Moment, nullable=False),
    sa.UniqueConstraint("team_id", "name", name="uq_projects_team_name"),
)

# -- the gateway ---------------------------------------------------------------------------------------

requests = sa.Table(
    "requests",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("team_id", sa.String(32), nullable=False),
    sa.Column("key_id", sa.String(32)),
    sa.Column("trace_id", sa.String(32)),
    sa.Column("route", sa.Text, nullable=False),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("checkpoint", sa.String(32)),
    sa.Column("status", sa.Integer, nullable=False),
    sa.Column("prompt_tokens", sa.Integer, nullable=False, default=0),
    sa.Column("completion_tokens", sa.Integer, nullable=False, default=0),
    sa.Column("cached_tokens", sa.Integer, nullable=False, default=0),
    sa.Column("cost_usd", sa.Float),
    sa.Column("seconds", sa.Float, nullable=False),
    sa.Column("created_at", Moment, nullable=False, index=True),
    sa.Index("requests_of_trace", "trace_id"),
    # Covering index for the usage of a team's keys.
    sa.Index(
        "requests_of_team",
        "team_id",
        "created_at",
        "key_id",
        "prompt_tokens",
        "completion_tokens",
        "cost_usd",
    ),
)

run_passes = sa.Table(
    "run_passes",
    metadata,
    # Passes of programs that play runs; the grant itself is in the signed pass.
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("trace_id", sa.String(32), nullable=False, index=True),
    sa.Column("team_id", sa.String(32), nullable=False),
    # Key that opened the pass, with which it ends; NULL: without a key.
    sa.Column("key_id", sa.String(32)),
    sa.Column("opened_at", Moment, nullable=False),
    sa.Column("expires_at", Moment, nullable=False),
    sa.Column("ended_at", Moment),
    # Numbers given to calls, and their sampled tokens and cost.
    sa.Column("calls", sa.Integer, nullable=False, default=0),
    sa.Column("tokens", sa.Integer, nullable=False, default=0),
    sa.Column("cost_usd", sa.Float, nullable=False, default=0.0),
)

run_calls = sa.Table(
    "run_calls",
    metadata,
    # Model calls of a pass, numbered from 1 in the order of their arrival.
    sa.Column("pass_id", sa.String(32), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    # "open", "answered", "refused", "gone" (its client disconnected) or "cancelled" (by the run's end).
    sa.Column("status", sa.String(16), nullable=False),
    # SHA-256 of the request, equal for repetitions.
    sa.Column("digest", sa.String(64), nullable=False),
    # JSON: agent steps with their samples, tool steps of the request's results, numbers of earlier calls whose answers the request
    # holds, and the refusal.
    sa.Column("steps", sa.LargeBinary),
    sa.Column("results", sa.LargeBinary),
    sa.Column("continues", sa.LargeBinary),
    sa.Column("refusal", sa.LargeBinary),
    sa.Column("started_at", Moment, nullable=False),
    sa.Column("ended_at", Moment),
)

run_reservations = sa.Table(
    "run_reservations",
    metadata,
    # What calls in progress may still take of their run's limits, at all servers; without its server's sign of life it is void.
    sa.Column("pass_id", sa.String(32), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("tokens", sa.BigInteger, nullable=False),
    sa.Column("cost_usd", sa.Float, nullable=False),
    sa.Column("expires_at", Moment, nullable=False),
)

limit_levels = sa.Table(
    "limit_levels",
    metadata,
    # What is left of the limits of keys: "requests" or "tokens", at a moment from which it refills.
    sa.Column("key_id", sa.String(32), primary_key=True),
    sa.Column("kind", sa.String(16), primary_key=True),
    sa.Column("level", sa.Float, nullable=False),
    sa.Column("counted_at", Moment, nullable=False),
)

responses = sa.Table(
    "responses",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("team_id", sa.String(32), nullable=False, index=True),
    # Conversation up to and including this response, as chat messages.
    sa.Column("messages", sa.LargeBinary, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Column("created_at", Moment, nullable=False),
)

# -- tasksets, environments, builds --------------------------------------------------------------------

tasksets = sa.Table(
    "tasksets",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("team_id", sa.String(32), nullable=False, index=True),
    sa.Column("project_id", sa.String(32)),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("version", sa.Integer, nullable=False, default=0),
    sa.Column("created_at", Moment, nullable=False),
    sa.Column("updated_at", Moment, nullable=False),
    sa.UniqueConstraint("team_id", "name", name="uq_tasksets_team_name"),
)

taskset_rows = sa.Table(
    "taskset_rows",
    metadata,
    sa.Column("taskset_id", sa.String(32), primary_key=True),
    sa.Column("slug", sa.Text, primary_key=True),
    # Version of the taskset that introduced this row; older rows of a slug remain for older versions.
    sa.Column("version", sa.Integer, primary_key=True),
    sa.Column("position", sa.Integer, nullable=False),
    # JSON as uploaded: an export must compare equal to it. NULL: removed.
    sa.Column("row", sa.LargeBinary),
    sa.Column("created_at", Moment, nullable=False),
)

environments = sa.Table(
    "environments",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("team_id", sa.String(32), nullable=False, index=True),
    sa.Column("project_id", sa.String(32)),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("created_at", Moment, nullable=False),
    sa.UniqueConstraint("team_id", "name", name="uq_environments_team_name"),
)

builds = sa.Table(
    "builds",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("team_id", sa.String(32), nullable=False, index=True),
    sa.Column("environment_id", sa.String(32), index=True),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("version", sa.Integer),
    sa.Column("archive", sa.Text),
    sa.Column("folder", sa.Text),
    # SHA-256 of the build packed for other machines, which is the blob builds/DIGEST; NULL: not packed yet.
    sa.Column("digest", sa.String(64)),
    sa.Column("options", sa.JSON, nullable=False, default=dict),
    sa.Column("manifest", sa.JSON),
    sa.Column("error", sa.Text),
    sa.Column("attempt", sa.Integer, nullable=False, default=0),
    sa.Column("worker", sa.Text),
    sa.Column("lease_expires_at", Moment),
    sa.Column("created_at", Moment, nullable=False),
    sa.Column("started_at", Moment),
    sa.Column("ended_at", Moment),
)

build_lines = sa.Table(
    "build_lines",
    metadata,
    sa.Column("build_id", sa.String(32), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("created_at", Moment, nullable=False),
)

# -- rollouts that the platform runs ---------------------------------------------------------------------

rollouts = sa.Table(
    "rollouts",
    metadata,
    sa.Column("trace_id", sa.String(32), primary_key=True),
    sa.Column("team_id", sa.String(32), nullable=False, index=True),
    sa.Column("key_id", sa.String(32)),
    sa.Column("job_id", sa.String(32), index=True),
    sa.Column("spec", sa.JSON, nullable=False),
    # Canonical JSON of what it requires of a node; NULL: nothing. Few values: workers match them one by one.
    sa.Column("needs", sa.Text),
    # queued, running, cancelling, or as a run ends.
    sa.Column("status", sa.String(16), nullable=False),
    # Counts up with every lease and never down: worker and attempt are the lease.
    sa.Column("attempt", sa.Integer, nullable=False, default=0),
    # Attempts that infrastructure broke, and attempts whose worker was lost or handed them back.
    sa.Column("faults", sa.Integer, nullable=False, default=0),
    sa.Column("preemptions", sa.Integer, nullable=False, default=0),
    sa.Column("worker", sa.Text),
    # For a waiting rollout: earliest time of the next attempt.
    sa.Column("lease_expires_at", Moment),
    sa.Column("created_at", Moment, nullable=False),
    sa.Column("started_at", Moment),
    sa.Column("ended_at", Moment),
    # Covering index for the workers' queries of the queue.
    sa.Index("rollouts_queue", "status", "team_id", "job_id", "lease_expires_at", "created_at"),
    sa.Index("rollouts_needs", "status", "needs"),
)

lost_attempts = sa.Table(
    "lost_attempts",
    metadata,
    # Attempts without a result. The last attempt of a rollout is its own row.
    sa.Column("trace_id", sa.String(32), primary_key=True),
    sa.Column("attempt", sa.Integer, primary_key=True),
    sa.Column("worker", sa.Text),
    # lost, handed back, broken.
    sa.Column("outcome", sa.String(16), nullable=False),
    sa.Column("error", sa.Text),
    sa.Column("ended_at", Moment, nullable=False),
)

rollout_snapshots = sa.Table(
    "rollout_snapshots",
    metadata,
    # Last snapshot of an open rollout, from which its next attempt goes on.
    sa.Column("trace_id", sa.String(32), primary_key=True),
    # The attempt that took it.
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("blob", sa.Text, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    # Snapshots of the rollout so far.
    sa.Column("taken", sa.Integer, nullable=False),
    sa.Column("taken_at", Moment, nullable=False),
)

fleet_nodes = sa.Table(
    "fleet_nodes",
    metadata,
    # Workers that joined. The name under which a worker holds leases.
    sa.Column("worker", sa.String(200), primary_key=True),
    sa.Column("id", sa.String(32), nullable=False, unique=True),
    sa.Column("team_id", sa.String(32), nullable=False, index=True),
    # The pass; NULL: a worker that the platform started itself.
    sa.Column("key_id", sa.String(32)),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("labels", sa.JSON, nullable=False),
    sa.Column("capacity", sa.JSON, nullable=False),
    sa.Column("version", sa.String(64), nullable=False),
    # open, cordoned, draining.
    sa.Column("state", sa.String(16), nullable=False, default="open"),
    # What the worker says of itself: rollouts in flight, finished, broken, ...
    sa.Column("load", sa.JSON, nullable=False),
    sa.Column("preemptions", sa.Integer, nullable=False, default=0),
    sa.Column("joined_at", Moment, nullable=False),
    sa.Column("seen_at", Moment, nullable=False),
    # NULL: it did not say goodbye.
    sa.Column("left_at", Moment),
)
