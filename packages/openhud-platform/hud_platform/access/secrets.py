"""Keys of providers and vLLM servers for one team: its own keys, and those of the server that it may use.
A team's keys are files under `HUD_HOME/secrets`, readable only by the server's user. The server's environment
variables belong to the first team; every team may use those in `HUD_SHARED_KEYS`, at the providers' own addresses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from hud import settings
from hud.durable_files import PRIVATE, make_folder, read_regular, refuse_open, write_file
from hud.errors import NotFoundError, PlatformError, StoreError, UsageError
from hud.outbound import Reach, networks_of
from hud_platform.store.tables import LOCAL_TEAM

_NAME = re.compile(r"(?!HUD_)[A-Z][A-Z0-9_]{0,92}API_KEY")
_MOST_CHARACTERS = 8192
_MOST_SECRETS = 100


class Secrets:
    """Keys of one team."""

    def __init__(self, home: Path, team: str) -> None:
        self.team = team
        self._folder = home / "secrets" / team

    def names(self) -> list[str]:
        """Return the names of the team's own keys."""
        if not self._folder.is_dir():
            return []
        return sorted(path.name for path in self._folder.iterdir() if _NAME.fullmatch(path.name))

    def set(self, name: str, value: str) -> None:
        """Store a key of the team. Raises `UsageError` for an invalid name or value, or too many keys."""
        _check_name(name)
        if not value.isascii() or not value.isprintable() or not 0 < len(value) <= _MOST_CHARACTERS:
            raise UsageError(f"The value of {name} must be one line of printable ASCII characters.")
        if name not in self.names() and len(self.names()) >= _MOST_SECRETS:
            raise UsageError(f"A team can store at most {_MOST_SECRETS} keys; remove one first.")
        make_folder(self._folder, 0o700)
        write_file(self._folder / name, value.encode("ascii"), PRIVATE)

    def remove(self, name: str) -> None:
        """Delete a key of the team. Raises `NotFoundError` for an unknown name, `StoreError` for what is no file."""
        _check_name(name)
        try:
            (self._folder / name).unlink()
        except FileNotFoundError:
            raise NotFoundError(
                f"Your team has no key {name}; hud secrets list shows its keys."
            ) from None
        except IsADirectoryError:
            raise StoreError(f"{self._folder / name} is a folder. Move it away.") from None
        except OSError as error:
            raise StoreError(
                f"{self._folder / name} cannot be removed: {error.strerror}."
            ) from None

    def get(self, name: str) -> str | None:
        """Return a key for an address that the team chose."""
        own = self._own(name)
        if own is None and self.team == LOCAL_TEAM:
            return settings.load().environment.get(name) or None
        return own

    def get_shared(self, name: str) -> str | None:
        """Return a key for a provider's own address, chosen by the server's operator."""
        secret = self.get(name)
        if secret is None:
            now = settings.load()
            if name in now.shared_keys:
                return now.environment.get(name) or None
        return secret

    def refuse_destinations(self, urls: Iterable[str], key_env: str | None) -> None:
        """Raise `PlatformError` 403 for addresses that the server may not call for the team, or a key that is not its own."""
        if key_env is not None and self.team != LOCAL_TEAM and self._own(key_env) is None:
            raise PlatformError(
                f"Your team has no key {key_env}, and the server's keys belong to the first team. Store your own: "
                f"hud secrets set {key_env}",
                403,
            )
        for url in urls:
            self.reach.check(url)

    @property
    def reach(self) -> Reach:
        """Network addresses that this server may call for the team."""
        return Reach(private=self.team == LOCAL_TEAM, networks=networks_of(settings.load().reach))

    def _own(self, name: str) -> str | None:
        if not _NAME.fullmatch(name):
            return None
        path = self._folder / name
        value = read_regular(path)
        if value is not None and not value.isascii():
            raise StoreError(
                f"{path} is damaged: it holds no ASCII. Set the key again: hud secrets set {name}"
            )
        if not value:
            return None
        refuse_open(path)
        return value.decode("ascii")


def operator_reach() -> Reach:
    """Return the reach for addresses configured by the operator, for all callers."""
    return Reach(private=True, networks=networks_of(settings.load().reach))


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a valid name of a key: upper-case, ending in API_KEY, not beginning with HUD_."
        )
