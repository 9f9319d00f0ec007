"""Prices of machines, from `prices.toml` or a file of the same form that the user gives."""

from __future__ import annotations

from datetime import date
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hud.errors import UsageError
from hud.train.config import read_toml

SHIPPED = Path(__file__).with_name("prices.toml")


class Hour(BaseModel):
    """Prices of an hour of one unit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    on_demand: float = Field(ge=0, allow_inf_nan=False)
    spot: float = Field(ge=0, allow_inf_nan=False)


class Prices(BaseModel):
    """A file of prices."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    date: date
    """The day on which they held."""
    currency: str = "USD"
    gpus: dict[str, Hour] = {}
    """By the GPU's name."""
    cpu_core: Hour | None = None

    def day(self) -> str:
        """Return the date in words: `2 July 2026`."""
        return f"{self.date.day} {self.date:%B %Y}"


def read_prices(path: Path | None = None) -> Prices:
    """Return the prices of a file; without one, those of the package. Raises `UsageError` for a file of another form."""
    path = path or SHIPPED
    try:
        return Prices.model_validate(read_toml(path))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "it"
        raise UsageError(
            f"{path} is not a file of prices ({place}: {first['msg']}). {SHIPPED} is an example."
        ) from error
