"""Store of the platform: tables, migrations, and functions that write to and read from them."""

from hud.platform.store import tables
from hud.platform.store.store import Store

__all__ = ["Store", "tables"]
