"""The store of the platform: tables, migrations, and what is written to and read from them."""

from hud.platform.store import tables
from hud.platform.store.store import Store

__all__ = ["Store", "tables"]
