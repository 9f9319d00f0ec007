"""Alembic's way in: it works on the connection that `Store` hands it."""

from alembic import context

from hud.platform.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
