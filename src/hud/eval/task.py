"""`Task`: defined in `hud.environment.templates.task`, because templates create it."""

from hud.environment.templates.task import Task

__all__ = ["Task"]
