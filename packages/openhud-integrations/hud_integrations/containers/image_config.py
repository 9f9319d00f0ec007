"""`ImageConfig`: the settings of an image that a workspace honours, as in the OCI specification."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ValidationError

from hud.errors import UsageError

LARGEST_USER = (1 << 32) - 2
"""Largest user id; the one above it stands for none."""


def _variable(text: str) -> str:
    name, equals, _ = text.partition("=")
    if not name or not equals or "\0" in text:
        raise ValueError("a variable is NAME=VALUE")
    return text


class ImageConfig(BaseModel):
    """Variables, working directory and user; of services, their command and its health check, too."""

    Env: list[Annotated[str, AfterValidator(_variable)]] | None = None
    WorkingDir: str | None = None
    User: str | None = None
    Entrypoint: list[str] | None = None
    Cmd: list[str] | None = None
    Healthcheck: dict[str, Any] | None = None

    @property
    def variables(self) -> dict[str, str]:
        """Declared variables by name; a later one of the same name counts."""
        return dict(variable.split("=", 1) for variable in self.Env or ())


def read_config(document: Any) -> ImageConfig:
    """Return the settings of an image's `config`. Raises `UsageError` for a malformed one."""
    try:
        return ImageConfig.model_validate({} if document is None else document)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise UsageError(f"The image's configuration is malformed: {where}: {problem['msg']}.") from None  # fmt: skip
