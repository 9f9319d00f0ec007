"""Task folders of Harbor: `HarborEnvironment` plays them, `import_folder` and `export_tasks` read and write them.

The format is plain files, so no package is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hud.lazy import lazy

if TYPE_CHECKING:
    from hud_integrations.harbor.environment import HarborEnvironment
    from hud_integrations.harbor.exporting import export_tasks
    from hud_integrations.harbor.importing import import_folder
    from hud_integrations.harbor.swe_bench import convert_swe_bench
    from hud_integrations.harbor.trajectory import atif_trajectory

__all__ = [
    "HarborEnvironment",
    "atif_trajectory",
    "convert_swe_bench",
    "export_tasks",
    "import_folder",
]

__getattr__ = lazy(
    __name__,
    {
        "HarborEnvironment": ".environment",
        "atif_trajectory": ".trajectory",
        "convert_swe_bench": ".swe_bench",
        "export_tasks": ".exporting",
        "import_folder": ".importing",
    },
)
