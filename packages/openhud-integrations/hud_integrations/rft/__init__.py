"""Tasks as training data of OpenAI's reinforcement fine-tuning (RFT): prompts, and a grader that needs no OpenHUD.

`export_tasks` writes them; no service is called. Needs no package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hud.lazy import lazy

if TYPE_CHECKING:
    from hud_integrations.rft.exporting import export_tasks
    from hud_integrations.rft.grader_source import python_grader

__all__ = ["export_tasks", "python_grader"]

__getattr__ = lazy(__name__, {"export_tasks": ".exporting", "python_grader": ".grader_source"})
