"""Alembic's entry point: runs migrations on the connection passed by `Store`."""

from alembic import context

from hud_platform.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
