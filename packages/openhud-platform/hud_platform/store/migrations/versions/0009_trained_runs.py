"""Runs that a model was trained on, by model: their tasks are no evidence of its promotion."""

from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.create_index(
        "trainer_logprobs_of_model",
        "trainer_logprobs",
        ["model_id", "trace_id"],
        if_not_exists=True,
    )
