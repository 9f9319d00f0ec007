"""`env.browser` and `env.desktop`: how an environment says that its runs have a screen."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hud.environment.parts import OpenPart, Part

if TYPE_CHECKING:
    from hud.environment.screens.browser import Browser


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
