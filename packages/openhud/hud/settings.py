"""Settings: the only module that reads them from environment variables.

Precedence: process environment, then `./.env`, then `$HUD_HOME/.env`. Values are read at each `load()`, so changes of the
environment take effect.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from hud.dotenv import read_dotenv
from hud.errors import UsageError

_PROGRAMS = "HUD_PROGRAMS"


@dataclass(frozen=True)
class Settings:
    """The resolved settings of this process."""

    home: Path
    """Folder of the embedded store: database, journal, models, checkpoints. `HUD_HOME`, default `~/.hud`."""
    database_url: str | None
    """Database of the embedded store (`HUD_DATABASE_URL`), or None: SQLite in `home`."""
    api_url: str | None
    """Platform to talk to (`HUD_API_URL`), or None: the embedded platform in this process."""
    gateway_url: str | None
    rl_url: str | None
    runtime_url: str | None
    api_key: str | None
    color: bool
    """Colour of command output; False with `NO_COLOR`."""
    samplers: int | None = None
    """Processes that sample a small model on a CPU (`HUD_SAMPLERS`); None: by the number of idle cores."""
    reach: str = ""
    """Addresses and networks that the platform may call besides public ones (`HUD_REACH`), separated by commas."""
    shared_keys: frozenset[str] = frozenset()
    """Variables with providers' keys that every team may use, at the provider's own address only (`HUD_SHARED_KEYS`)."""
    cpu_kernels: bool = True
    """False (`HUD_CPU_KERNELS=0`): compute on a CPU without `hud_kernels`, slower."""
    cuda_kernels: bool = True
    """False (`HUD_CUDA_KERNELS=0`): compute on a GPU without `hud_kernels`, slower."""
    prefill_ms: float = 25.0
    """Most milliseconds for which prompts hold up decoding sequences at a time on a GPU (`HUD_PREFILL_MS`)."""
    user_model: str | None = None
    """Model that plays customers of conversations (`HUD_USER_MODEL`): a slug, or the address of a server with one model."""
    environment: dict[str, str] = field(default_factory=dict, repr=False)
    """All variables, for names that come from configurations: those of providers' keys."""

    @property
    def embedded(self) -> bool:
        """True when the platform is embedded in this process."""
        return self.api_url is None


def load() -> Settings:
    """Read the settings of this process now. Raises `UsageError` for a value with no meaning."""
    home = home_folder()
    return of_variables(
        home, {**read_dotenv(home / ".env"), **read_dotenv(Path(".env")), **os.environ}
    )


def home_folder() -> Path:
    """Return the folder of what is recorded and stored (`HUD_HOME`)."""
    return Path(os.environ.get("HUD_HOME") or Path.home() / ".hud").expanduser()


def of_variables(home: Path, values: dict[str, str]) -> Settings:
    """Return the settings of these variables. Raises `UsageError` for a value with no meaning."""
    api_url = _address(values, "HUD_API_URL")
    return Settings(
        home=home,
        database_url=values.get("HUD_DATABASE_URL") or None,
        api_url=api_url,
        gateway_url=_address(values, "HUD_GATEWAY_URL") or api_url,
        rl_url=_address(values, "HUD_RL_URL") or api_url,
        runtime_url=_address(values, "HUD_RUNTIME_URL") or api_url,
        api_key=values.get("HUD_API_KEY") or None,
        color="NO_COLOR" not in values,
        samplers=_count(values.get("HUD_SAMPLERS")),
        reach=values.get("HUD_REACH", ""),
        shared_keys=frozenset(
            name.strip() for name in values.get("HUD_SHARED_KEYS", "").split(",") if name.strip()
        ),
        cpu_kernels=values.get("HUD_CPU_KERNELS") != "0",
        cuda_kernels=values.get("HUD_CUDA_KERNELS") != "0",
        prefill_ms=_milliseconds(values.get("HUD_PREFILL_MS")),
        user_model=values.get("HUD_USER_MODEL") or None,
        environment=values,
    )


def programs() -> list[Path]:
    """Return the files and folders of agent programs, which every workspace mounts read-only at their paths.

    `HUD_PROGRAMS` of the process environment, separated by `:`; a file of settings has no influence on mounts.
    """
    return [Path(path) for path in os.environ.get(_PROGRAMS, "").split(os.pathsep) if path]


def add_programs(paths: Iterable[Path]) -> None:
    """Add to `programs` of this process, and of processes that it starts from now on."""
    os.environ[_PROGRAMS] = os.pathsep.join(map(str, dict.fromkeys([*programs(), *paths])))


def _address(values: dict[str, str], name: str) -> str | None:
    """Return the address that a variable holds; None where it has none."""
    address = values.get(name) or None
    if address is not None and not re.match(r"(?:https?|wss?|tcp)://[^/\s]", address):
        raise UsageError(
            f"{name} is {address!r}; it is the address of a platform, such as http://localhost:8000."
        )
    return address


def _count(value: str | None) -> int | None:
    if not value:
        return None
    if not value.isdigit() or int(value) == 0:
        raise UsageError(f"HUD_SAMPLERS is {value!r}; it is a number of processes, at least 1.")
    return int(value)


def _milliseconds(value: str | None) -> float:
    try:
        milliseconds = float(value) if value else Settings.prefill_ms
    except ValueError:
        milliseconds = 0.0
    if not 0 < milliseconds < math.inf:
        raise UsageError(
            f"HUD_PREFILL_MS is {value!r}; it is a number of milliseconds above 0, such as 25."
        )
    return milliseconds
