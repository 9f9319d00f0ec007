"""Words of runs, their full-text index (FTS5 on SQLite, GIN on PostgreSQL), and the queue of runs that wait for it."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_SQLITE = (
    "CREATE VIRTUAL TABLE run_words USING fts5(team_id, words, content='run_texts', content_rowid='id',"
    " tokenize='unicode61 remove_diacritics 0')",
    "CREATE TRIGGER run_words_added AFTER INSERT ON run_texts BEGIN"
    " INSERT INTO run_words(rowid, team_id, words) VALUES (new.id, new.team_id, new.words); END",
    "CREATE TRIGGER run_words_removed AFTER DELETE ON run_texts BEGIN"
    " INSERT INTO run_words(run_words, rowid, team_id, words)"
    " VALUES ('delete', old.id, old.team_id, old.words); END",
)
_POSTGRESQL = ("CREATE INDEX run_words ON run_texts USING gin (to_tsvector('simple', words))",)


def upgrade() -> None:
    op.create_table(
        "run_texts",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("trace_id", sa.String(length=32), nullable=False, unique=True),
        sa.Column("team_id", sa.String(length=32), nullable=False),
        sa.Column("words", sa.Text(), nullable=False),
    )
    op.create_table(
        "runs_to_index",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("trace_id", sa.String(length=32), nullable=False, unique=True),
        sa.Column("team_id", sa.String(length=32), nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("runs_to_index_of_team", "runs_to_index", ["team_id", "id"])
    op.execute(
        "INSERT INTO runs_to_index (trace_id, team_id)"
        " SELECT trace_id, team_id FROM runs WHERE status <> 'running' ORDER BY started_at"
    )
    connection = op.get_bind()
    statements: tuple[str, ...]
    if connection.dialect.name == "postgresql":
        statements = _POSTGRESQL
    else:
        built_in = "SELECT sqlite_compileoption_used('ENABLE_FTS5')"
        # Without it the store works, and searching says what is missing.
        statements = _SQLITE if connection.exec_driver_sql(built_in).scalar() else ()
    for statement in statements:
        op.execute(statement)
