"""A full-text index over everything that a run does, with fields. Every run is queued for it."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"

_SQLITE = (
    # Words are lower-case letters and digits, separated by spaces: `ascii` leaves them as they are.
    "CREATE VIRTUAL TABLE run_words USING fts5(team_id, words, tokenize='ascii', columnsize=0)",
    # Bytes of new words in memory before they are written: fewer segments to merge.
    "INSERT INTO run_words(run_words, rank) VALUES ('hashsize', 8000000)",
)
_POSTGRESQL = (
    "CREATE TABLE run_words (rowid INTEGER PRIMARY KEY, team_id VARCHAR(32) NOT NULL, words TSVECTOR NOT NULL)",
    "CREATE INDEX run_words_index ON run_words USING gin (words)",
)


def upgrade() -> None:
    connection = op.get_bind()
    postgresql = connection.dialect.name == "postgresql"
    if postgresql:
        op.execute("DROP INDEX IF EXISTS run_words")
    else:
        op.execute("DROP TRIGGER IF EXISTS run_words_added")
        op.execute("DROP TRIGGER IF EXISTS run_words_removed")
        op.execute("DROP TABLE IF EXISTS run_words")
    op.execute("DROP TABLE IF EXISTS run_texts")
    op.create_table(
        "indexed_runs",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("trace_id", sa.String(length=32), nullable=False, unique=True),
        sa.Column("team_id", sa.String(length=32), nullable=False),
        sa.Column("reward", sa.Float()),
        sa.Column("turns", sa.Integer(), nullable=False),
        sa.Column("tokens", sa.Integer(), nullable=False),
        sa.Column("cost", sa.Float()),
        sa.Column("seconds", sa.Float()),
    )
    op.create_index("indexed_runs_of_team", "indexed_runs", ["team_id", "id"])
    queued_at = sa.Column("queued_at", sa.BigInteger(), nullable=False, server_default="0")
    op.add_column("runs_to_index", queued_at)
    op.execute("DELETE FROM runs_to_index")
    op.execute(
        "INSERT INTO runs_to_index (trace_id, team_id)"
        " SELECT trace_id, team_id FROM runs WHERE status <> 'running' ORDER BY started_at"
    )
    built_in = "SELECT sqlite_compileoption_used('ENABLE_FTS5')"
    # Without FTS5 the store works, and searching reports what is missing.
    fts5 = postgresql or connection.exec_driver_sql(built_in).scalar()
    for statement in _POSTGRESQL if postgresql else _SQLITE if fts5 else ():
        op.execute(statement)
