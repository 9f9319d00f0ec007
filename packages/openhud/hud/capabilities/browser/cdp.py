"""`CDPClient`: a browser over the Chrome DevTools Protocol, with screen, mouse and keyboard.

It follows the tabs: screen and input are those of the foreground page.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, ClassVar, Self
from urllib.parse import urlsplit

import httpx

from hud.capabilities.browser.devtools import DevTools
from hud.capabilities.browser.page import LOAD_SECONDS, Page
from hud.capabilities.browser.tabs import Tabs
from hud.capabilities.capability import CDP, Capability, CapabilityClient
from hud.capabilities.keyboard import Key
from hud.capabilities.screen import Button, Point
from hud.errors import EnvironmentFault, InfrastructureFault

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

_CONNECT_SECONDS = 30.0
_GONE = 4001
"""WebSocket close code of OpenHUD's environments: the browser has exited; the close reason has details."""


class CDPClient(CapabilityClient):
    """A connected browser: a `Screen` with navigation."""

    protocol: ClassVar[str] = CDP
    environment: ClassVar[str] = "browser"

    def __init__(self, tabs: Tabs, size: tuple[int, int]) -> None:
        self.devtools = tabs.devtools
        self._tabs = tabs
        self._size = size
        self._cursor: Point = (0, 0)

    @classmethod
    async def connect(cls, capability: Capability) -> Self:
        """Connect to `capability.url`: a DevTools WebSocket, or `http://host:port` of a debugging port."""
        url = await _socket_url(capability)
        devtools = DevTools(await WebSocketWire.open(url))
        tabs = Tabs(devtools)
        try:
            if "/devtools/browser/" in url:
                await tabs.follow()
            else:
                await tabs.follow_one(url.rsplit("/", 1)[-1])
            return cls(tabs, await tabs.front.size())
        except BaseException:
            await devtools.close()
            raise

    async def close(self) -> None:
        await self._tabs.close()
        await self.devtools.close()

    @property
    def page(self) -> Page:
        """The foreground tab."""
        return self._tabs.front

    async def call(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a command of the DevTools protocol to the foreground tab."""
        return await self.page.call(method, params)

    def dialogs(self) -> list[str]:
        """Return the texts of dialogs since the last call; each dialog was accepted immediately."""
        return self._tabs.dialogs()

    # -- the browser ------------------------------------------------------------------------------

    async def goto(self, url: str, *, timeout: float = LOAD_SECONDS) -> None:
        await self.page.goto(url, timeout=timeout)

    async def back(self) -> bool:
        """Go back in the history; False without an earlier entry."""
        return await self.page.go(-1)

    async def forward(self) -> bool:
        """Go forward in the history; False without a later entry."""
        return await self.page.go(1)

    async def url(self) -> str:
        return await self.page.url()

    async def evaluate(self, expression: str) -> Any:
        return await self.page.evaluate(expression)

    # -- the screen -------------------------------------------------------------------------------

    @property
    def size(self) -> tuple[int, int]:
        return self._size

    @property
    def cursor(self) -> Point:
        return self._cursor

    async def screenshot(self, region: tuple[int, int, int, int] | None = None) -> bytes:
        return await self.page.screenshot(region)

    async def move(self, point: Point) -> None:
        self._cursor = point
        await self.page.move(point)

    async def mouse_down(self, button: Button, count: int = 1) -> None:
        await self._pointed.mouse_down(button, count)

    async def mouse_up(self, button: Button, count: int = 1) -> None:
        await self._pointed.mouse_up(button, count)

    async def scroll(self, right: int, down: int) -> None:
        await self._pointed.scroll(right, down)

    async def type_text(self, text: str) -> None:
        await self.page.type_text(text)

    async def key_down(self, key: Key) -> None:
        await self.page.key_down(key)

    async def key_up(self, key: Key) -> None:
        await self.page.key_up(key)

    async def settle(self) -> None:
        before = self.page
        await before.settle()
        after = self.page
        if after is not before:  # A new tab.
            await after.settle()

    @property
    def _pointed(self) -> Page:
        """The foreground tab, with the mouse moved to this client's position."""
        page = self.page
        page.cursor = self._cursor
        return page


class WebSocketWire:
    """A DevTools WebSocket."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    @classmethod
    async def open(cls, url: str) -> WebSocketWire:
        """Connect; raises `InfrastructureFault` without an answer."""
        from websockets.asyncio.client import connect
        from websockets.exceptions import WebSocketException

        try:
            # No limits: screenshots are large, and a busy browser answers no pings.
            socket = await connect(
                url, max_size=None, ping_interval=None, compression=None, proxy=None,
                open_timeout=_CONNECT_SECONDS,
            )  # fmt: skip
        except (OSError, WebSocketException) as error:
            raise InfrastructureFault(f"No browser answers at {_plain(url)} ({error}).") from error
        return cls(socket)

    async def send(self, message: bytes, /) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            await self._socket.send(message, text=True)
        except ConnectionClosed as error:
            raise OSError(str(error)) from error

    async def messages(self) -> AsyncIterator[bytes | str]:
        from websockets.exceptions import ConnectionClosed

        try:
            while True:
                yield await self._socket.recv(decode=False)
        except ConnectionClosed:
            return

    async def close(self) -> None:
        await self._socket.close()

    def why_closed(self) -> str | None:
        return self._socket.close_reason if self._socket.close_code == _GONE else None


async def _socket_url(capability: Capability) -> str:
    """Return the WebSocket to connect to, preferably that of the whole browser."""
    parts = urlsplit(capability.url)
    path = capability.params.get("browser_path")
    if path:
        return f"ws://{parts.netloc}{path}"
    if "/devtools/" in parts.path:
        return parts._replace(scheme="ws").geturl()
    target = capability.params.get("target_id")
    if target:
        return f"ws://{parts.netloc}/devtools/page/{target}"
    version = f"http://{parts.netloc}/json/version"
    try:
        async with httpx.AsyncClient(timeout=_CONNECT_SECONDS, trust_env=False) as http:
            debugger_url = (await http.get(version)).json()["webSocketDebuggerUrl"]
    except httpx.HTTPError as error:
        raise InfrastructureFault(f"No browser answers at {version} ({error}).") from error
    except (ValueError, KeyError, TypeError) as error:
        raise EnvironmentFault(f"{version} names no DevTools socket.") from error
    return f"ws://{parts.netloc}{urlsplit(debugger_url).path}"


def _plain(url: str) -> str:
    """Return the address without credentials."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
