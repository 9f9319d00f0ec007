"""Store of the platform: tables, migrations, and functions that write to and read from them."""

from hud_platform.store import tables
from hud_platform.store.store import Store

__all__ = ["Store", "tables"]
