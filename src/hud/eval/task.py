"""`Task`: a row of plain data that says what to do; it is minted by templates, so it lives beside them."""

from hud.environment.templates.task import Task

__all__ = ["Task"]
