"""`env.browser` and `env.desktop`: how an environment says that its runs have a screen."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hud.environment.part import OpenPart, Part
from hud.errors import UsageError

if TYPE_CHECKING:
    from hud.environment.screens.browser import Browser
    from hud.environment.screens.desktop import Desktop, Program
    from hud.environment.workspace import Mount, WorkspaceLimits


class OffersScreens(ABC):
    """What an `Environment` knows of screens."""

    @abstractmethod
    def add_part(self, part: Part) -> None:
        """Have every run bring `part` up."""

    @abstractmethod
    def opened(self, part: Part) -> OpenPart:
        """Return what the current run has of `part`."""

    def browser(
        self,
        name: str = "browser",
        *,
        start_url: str = "about:blank",
        viewport: tuple[int, int] = (1024, 768),
        hosts: Sequence[str] | None = None,
        user_agent: str | None = None,
    ) -> Browser:
        """Give every run a Chromium with a fresh profile; agents see and use it as a computer.

        `hosts` are the only ones that pages may come from (`127.0.0.1`, `*.example.org`); None is any.
        """
        from hud.environment.screens.browser import Browser

        browser = Browser(
            self,
            name,
            start_url=start_url,
            viewport=viewport,
            hosts=hosts,
            user_agent=user_agent,
        )
        self.add_part(browser)
        return browser

    def desktop(
        self,
        name: str = "desktop",
        *,
        programs: Sequence[Program] = (),
        size: tuple[int, int] = (1024, 768),
        root: str | Path | None = None,
        mounts: Sequence[Mount] = (),
        network: bool = False,
        allowed_hosts: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        limits: WorkspaceLimits | None = None,
    ) -> Desktop:
        """Give every run a display of its own with a window manager; agents see and use it as a computer.

        `programs` are started on it: each a command line for the shell, or a list of words. They run in a sandbox as
        a workspace's do: `root`, `mounts`, `network`, `allowed_hosts`, `env` and `limits` are as `workspace` has them.
        """
        try:
            from hud.environment.screens.desktop import Desktop
        except ModuleNotFoundError as error:
            raise UsageError(
                f"A desktop needs the package {error.name!r}: pip install 'openhud[environments]'."
            ) from error

        desktop = Desktop(
            self,
            name,
            programs=programs,
            size=size,
            root=root,
            mounts=mounts,
            network=network,
            allowed_hosts=allowed_hosts,
            env=env,
            limits=limits,
        )
        self.add_part(desktop)
        return desktop
