"""`Tabs`: the pages of one browser, and the foreground page.

A page opened by another becomes the foreground page; when it is closed, the previous one does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from hud.capabilities.browser.devtools import DevTools
from hud.capabilities.browser.page import Page
from hud.errors import EnvironmentFault, RolloutError

MOST_TABS = 20
"""Tabs of a run's browser; a further one is closed before it loads anything."""
_FIRST_SECONDS = 30.0


class Tabs:
    """The tabs of the browser at the other end of `devtools`.

    With a `size` every tab is given that viewport, before it loads anything.
    """

    def __init__(
        self, devtools: DevTools, session: str | None = None, size: tuple[int, int] | None = None
    ) -> None:
        self.devtools, self.session, self.size = devtools, session, size
        self._pause = False
        self._pages: dict[str | None, Page] = {}
        """Pages by session; None: that of a connection to a single page."""
        self._some = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        devtools.listen(self._heard)

    async def follow(self, *, pause: bool = False) -> None:
        """Attach to all present and future tabs; wait for the first.

        With `pause` a new tab waits until it has been prepared, tabs beyond `MOST_TABS` are closed, and another takes the
        place of the last one; only one client of a browser may use it.
        Raises `EnvironmentFault` if no page opens.
        """
        self._pause = pause
        await self.devtools.call(
            "Target.setAutoAttach",
            {
                "autoAttach": True,
                "waitForDebuggerOnStart": pause,
                "flatten": True,
                "filter": [{"type": "page"}],
            },
            session=self.session,
        )
        try:
            async with asyncio.timeout(_FIRST_SECONDS):
                await self._some.wait()
        except TimeoutError:
            raise EnvironmentFault(
                f"The browser has opened no page within {_FIRST_SECONDS:g} s."
            ) from None

    async def follow_one(self, target_id: str) -> None:
        """Use the single page of the connection."""
        page = self._pages[None] = Page(self.devtools, None, target_id)
        await page.prepare()

    def __len__(self) -> int:
        return len(self._pages)

    @property
    def front(self) -> Page:
        """The foreground page. Raises `EnvironmentFault` if all were closed."""
        if not self._pages:
            raise EnvironmentFault("The browser has no page open.")
        return next(reversed(self._pages.values()))

    def dialogs(self) -> list[str]:
        """Return the texts of dialogs since the last call, of all tabs."""
        texts: list[str] = []
        for page in self._pages.values():
            texts += page.dialogs
            page.dialogs = []
        return texts

    async def close(self) -> None:
        self.devtools.unlisten(self._heard)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    def _heard(self, method: str, params: dict[str, Any], session: str | None) -> None:
        if method == "Target.attachedToTarget" and session == self.session:
            info = params["targetInfo"]
            page = Page(
                self.devtools,
                params["sessionId"],
                info["targetId"],
                self.size,
                info.get("openerId"),
            )
            if self._pause and len(self._pages) >= MOST_TABS:
                self._beside(self._dismiss(page))
                return
            self._pages[page.session] = page
            self._beside(self._welcome(page))
        elif method == "Target.detachedFromTarget" and session == self.session:
            gone = self._pages.pop(params["sessionId"], None)
            if gone is not None and self._pages:
                self._beside(self._activate(next(reversed(self._pages.values()))))
            elif gone is not None and self._pause:
                self._beside(self._reopen())
        elif session in self._pages:
            page = self._pages[session]
            todo = page.heard(method, params)
            if todo is not None:
                self._beside(page.answer(todo))

    async def _welcome(self, page: Page) -> None:
        try:
            await page.prepare()
        finally:
            if self._pause:
                await page.call("Runtime.runIfWaitingForDebugger")
        self._some.set()

    async def _dismiss(self, page: Page) -> None:
        # A tab that waits would hold up the one that opened it.
        await page.call("Runtime.runIfWaitingForDebugger")
        await self.devtools.call(
            "Target.closeTarget", {"targetId": page.target_id}, session=self.session
        )

    async def _reopen(self) -> None:
        await self.devtools.call(
            "Target.createTarget", {"url": "about:blank"}, session=self.session
        )

    async def _activate(self, page: Page) -> None:
        await self.devtools.call(
            "Target.activateTarget", {"targetId": page.target_id}, session=self.session
        )

    def _beside(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(_quietly(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # A task that is cancelled before it starts never awaits the work.
        task.add_done_callback(lambda _: work.close())


async def _quietly(work: Coroutine[Any, Any, None]) -> None:
    """Send the response to an event; ignored if the tab was closed meanwhile."""
    try:
        await work
    except RolloutError:
        return
