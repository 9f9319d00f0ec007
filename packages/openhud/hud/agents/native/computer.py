"""`ComputerTool`: a browser or a desktop, by screenshots and input events; one for each screen of a run.

All dialects translate to its arguments. Points are pixels from the screen's top left. After each action it waits for the
effect and returns a screenshot.
"""

from __future__ import annotations

import asyncio
import base64
import math
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Protocol, TypeGuard, cast, get_args

from hud.agents.native.arguments import parsed
from hud.capabilities.browser.page import is_web_address
from hud.capabilities.keyboard import keys_named
from hud.capabilities.screen import Button, Point, Screen, click, drag, press
from hud.errors import EnvironmentFault, UsageError
from hud.trace import ContentBlock, ImageContent, TextContent, ToolResult, ToolSpec

LONGEST_SECONDS = 60.0
_LONGEST_URL = 2000
"""Characters of an address that are shown: a page may give itself one of megabytes."""
_BUTTONS = get_args(Button)
_ACTIONS = (
    *("screenshot", "click", "move", "drag", "scroll", "type", "key", "hold_key"),
    *("mouse_down", "mouse_up", "wait", "cursor_position", "zoom"),
)
_BROWSER_ACTIONS = ("navigate", "back", "forward")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:(?!\d)", re.IGNORECASE)
_WHOLE = {"type": "integer"}
_PROPERTIES: dict[str, Any] = {
    "x": {**_WHOLE, "description": "Pixels from the left; where the mouse is, where left out."},
    "y": {**_WHOLE, "description": "Pixels from the top."},
    "button": {"type": "string", "enum": list(_BUTTONS), "description": "Which; left by default."},
    "count": {
        **_WHOLE,
        "minimum": 1,
        "maximum": 3,
        "description": "For click: 2 is a double click.",
    },
    "path": {
        "type": "array",
        "items": {"type": "array", "items": _WHOLE},
        "description": "For drag: points [x, y] from where to where.",
    },
    "scroll_x": {**_WHOLE, "description": "For scroll: pixels to the right."},
    "scroll_y": {**_WHOLE, "description": "For scroll: pixels down."},
    "text": {"type": "string", "description": "For type: the text."},
    "keys": {
        "type": "array",
        "items": {"type": "string"},
        "description": 'For key and hold_key: keys pressed together, such as ["ctrl", "c"]. For the mouse: keys held '
        "meanwhile.",
    },
    "seconds": {"type": "number", "description": "For wait and hold_key."},
    "region": {
        "type": "array",
        "items": _WHOLE,
        "description": "For zoom: [x0, y0, x1, y1], shown enlarged.",
    },
}
_URL = {"type": "string", "description": "For navigate: the address."}


class ScreenClient(Screen, Protocol):
    """A connected screen; `environment` is its kind: `browser`, `linux`."""

    environment: ClassVar[str]


class BrowserClient(ScreenClient, Protocol):
    """A connected browser."""

    async def goto(self, url: str) -> None: ...
    async def back(self) -> bool: ...
    async def forward(self) -> bool: ...
    async def url(self) -> str: ...
    def dialogs(self) -> list[str]: ...


class ComputerTool:
    """A `RunTool` over a screen."""

    def __init__(self, client: ScreenClient, *, name: str = "computer") -> None:
        self._screen = client
        self._browser = client if _is_browser(client) else None
        self._one_at_a_time = asyncio.Lock()
        width, height = client.size
        actions = [*_ACTIONS, *(() if self._browser is None else _BROWSER_ACTIONS)]
        properties = {"action": {"type": "string", "enum": actions}, **_PROPERTIES}
        if self._browser is not None:
            properties["url"] = _URL
        what = "browser" if self._browser is not None else "desktop"
        self.spec = ToolSpec(
            name=name,
            description=f"Use a {what} with mouse and keyboard. Its screen has {width} by {height} pixels; each "
            "action answers with what it shows afterwards.",
            parameters={"type": "object", "properties": properties, "required": ["action"]},
            native="computer",
            options={"width": width, "height": height, "environment": client.environment},
        )

    async def call(
        self, arguments: dict[str, Any] | str, timeout: float | None = None
    ) -> ToolResult:
        """Execute `arguments["action"]`; an invalid action is an error result."""
        wanted = parsed(arguments)
        if isinstance(wanted, ToolResult):
            return wanted
        try:
            async with self._one_at_a_time, asyncio.timeout(timeout):
                return await self._do(wanted)
        except (UsageError, EnvironmentFault) as refused:
            # If the screen is lost, the environment reports it afterwards.
            return ToolResult.of_text(str(refused), is_error=True)
        except TimeoutError:
            return ToolResult.of_text(f"It took longer than {timeout:g} s.", is_error=True)

    async def _do(self, wanted: Mapping[str, Any]) -> ToolResult:
        action = wanted.get("action")
        if action == "cursor_position":
            x, y = self._screen.cursor
            return ToolResult.of_text(f"x={x}, y={y}")
        if action == "zoom":
            return ToolResult(
                content=[_picture(await self._screen.screenshot(self._region(wanted)))]
            )
        if action != "screenshot":
            await self._act(str(action), wanted)
            await self._screen.settle()
        return ToolResult(content=[*await self._told(), _picture(await self._screen.screenshot())])

    async def _act(self, action: str, wanted: Mapping[str, Any]) -> None:
        screen = self._screen
        if action in ("click", "move", "drag", "scroll", "mouse_down", "mouse_up"):
            await self._point(action, wanted)
        elif action == "type":
            text = wanted.get("text")
            if not isinstance(text, str):
                raise UsageError("type needs `text`.")
            await screen.type_text(text)
        elif action == "key":
            await press(screen, keys_named(_keys(wanted)))
        elif action == "hold_key":
            async with self._held(_keys(wanted)):
                await asyncio.sleep(_seconds(wanted))
        elif action == "wait":
            await asyncio.sleep(_seconds(wanted))
        elif self._browser is not None and action in _BROWSER_ACTIONS:
            await _browse(self._browser, action, wanted)
        else:
            actions = self.spec.parameters["properties"]["action"]["enum"]
            raise UsageError(f"There is no action {action!r}; there are {', '.join(actions)}.")

    async def _point(self, action: str, wanted: Mapping[str, Any]) -> None:
        """Execute a mouse action, while `keys` are held."""
        screen = self._screen
        button = _button(wanted)
        async with self._held(wanted.get("keys") or []):
            if action == "drag":
                await drag(screen, self._path(wanted), button)
                return
            point = self._where(wanted)
            if action == "click":
                await click(screen, point, button, _count(wanted))
                return
            await screen.move(point)
            if action == "scroll":
                await screen.scroll(_pixels(wanted, "scroll_x"), _pixels(wanted, "scroll_y"))
            elif action == "mouse_down":
                await screen.mouse_down(button)
            elif action == "mouse_up":
                await screen.mouse_up(button)

    @asynccontextmanager
    async def _held(self, names: Any) -> AsyncIterator[None]:
        keys = keys_named(names) if names else []
        down = []
        try:
            for key in keys:
                down.append(key)
                await self._screen.key_down(key)
            yield
        finally:
            for key in reversed(down):
                await self._screen.key_up(key)

    def _where(self, wanted: Mapping[str, Any]) -> Point:
        if wanted.get("x") is None and wanted.get("y") is None:
            return self._screen.cursor
        return self._on_screen([wanted.get("x"), wanted.get("y")])

    def _path(self, wanted: Mapping[str, Any]) -> list[Point]:
        path = wanted.get("path")
        if not isinstance(path, list) or len(path) < 2:
            raise UsageError("drag needs `path`: at least two points [x, y].")
        return [self._on_screen(point) for point in path]

    def _on_screen(self, point: Any) -> Point:
        width, height = self._screen.size
        if not isinstance(point, list | tuple) or len(point) != 2 or not all(map(_number, point)):
            raise UsageError(f"A point is two numbers, x and y, not {point!r}.")
        x, y = round(point[0]), round(point[1])
        if not (0 <= x < width and 0 <= y < height):
            raise UsageError(
                f"({x}, {y}) is not on the screen, which has {width} by {height} pixels."
            )
        return x, y

    def _region(self, wanted: Mapping[str, Any]) -> tuple[int, int, int, int]:
        region = wanted.get("region")
        if not isinstance(region, list) or len(region) != 4 or not all(map(_number, region)):
            raise UsageError("zoom needs `region`: [x0, y0, x1, y1].")
        width, height = self._screen.size
        x0, y0, x1, y1 = (round(side) for side in region)
        x1, y1 = min(x1, width), min(y1, height)
        if not (0 <= x0 < x1 and 0 <= y0 < y1):
            raise UsageError(f"{region} is no region of a screen of {width} by {height} pixels.")
        return x0, y0, x1, y1

    async def _told(self) -> list[ContentBlock]:
        """Return information beyond the screenshot: a browser's URL, and texts of dialogs."""
        if self._browser is None:
            return []
        lines = [(await self._browser.url())[:_LONGEST_URL]]
        lines += [f"A dialog said: {message}" for message in self._browser.dialogs()]
        return [TextContent(text="\n".join(lines))]


def _is_browser(client: ScreenClient) -> TypeGuard[BrowserClient]:
    return client.environment == "browser"


async def _browse(browser: BrowserClient, action: str, wanted: Mapping[str, Any]) -> None:
    if action == "navigate":
        url = wanted.get("url")
        if not isinstance(url, str) or not url:
            raise UsageError("navigate needs `url`.")
        address = url.strip() if _SCHEME.match(url.strip()) else f"http://{url.strip()}"
        if not is_web_address(address) and address != "about:blank":
            raise UsageError(f"navigate opens http and https addresses, not {address[:80]!r}.")
        await browser.goto(address)
    elif not await (browser.back() if action == "back" else browser.forward()):
        raise UsageError(f"There is nothing to go {action} to.")


def _button(wanted: Mapping[str, Any]) -> Button:
    button = wanted.get("button") or "left"
    if button not in _BUTTONS:
        raise UsageError(f"There is no button {button!r}; there are {', '.join(_BUTTONS)}.")
    return cast("Button", button)


def _count(wanted: Mapping[str, Any]) -> int:
    count = wanted.get("count") or 1
    if count not in (1, 2, 3):
        raise UsageError("`count` must be 1, 2 or 3.")
    return int(count)


def _pixels(wanted: Mapping[str, Any], name: str) -> int:
    value = wanted.get(name) or 0
    if not _number(value):
        raise UsageError(f"`{name}` must be a number of pixels.")
    return round(value)


def _seconds(wanted: Mapping[str, Any]) -> float:
    seconds = wanted.get("seconds", 1)
    if not _number(seconds) or seconds < 0:
        raise UsageError("`seconds` must be a number.")
    return min(float(seconds), LONGEST_SECONDS)


def _keys(wanted: Mapping[str, Any]) -> Any:
    keys = wanted.get("keys")
    named = isinstance(keys, str) or (
        isinstance(keys, list) and all(isinstance(key, str) for key in keys)
    )
    if not keys or not named:
        raise UsageError('`keys` must name keys, such as ["ctrl", "c"].')
    return keys


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _picture(png: bytes) -> ImageContent:
    return ImageContent(data=base64.b64encode(png).decode(), mime_type="image/png")
