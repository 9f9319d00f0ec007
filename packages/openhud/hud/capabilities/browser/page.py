"""`Page`: one tab of a browser, over the DevTools protocol: navigation, JavaScript, mouse, keyboard, screenshots.

A page has one target; `tabs` tracks targets and the foreground tab.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
from typing import Any

from hud.capabilities.browser.devtools import COMMAND_SECONDS, DevTools, RefusedError
from hud.capabilities.keyboard import SHIFTED_CHARACTERS, Key, character, shifted
from hud.capabilities.screen import Button, Point
from hud.errors import EnvironmentFault

LOAD_SECONDS = 30.0
"""Time-out of `goto`, in seconds."""
SETTLE_SECONDS = 5.0
"""Time-out of `settle` for a page that an action has begun to load, in seconds."""
_BEGIN_SECONDS = 0.1
"""Time for an action's effect to begin, in seconds."""
_PAINT_SECONDS = 1.0
_RESPONSE_SECONDS = 5.0
_SWAPPING = "Not attached to an active page"
"""Error of the browser while an error page replaces a page that could not be loaded."""
_SWAP_SECONDS = 3.0
_SWAP_PAUSE_SECONDS = 0.05
_BUTTON_BITS = {"left": 1, "right": 2, "middle": 4, "back": 8, "forward": 16}
VIEWPORT = "[innerWidth, innerHeight]"
PAINTED = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))"
# Screenshots must not depend on time: equal pages have equal screenshots, so the caret does not blink.
_STILL_CARET = """{ const still = new CSSStyleSheet();
still.replaceSync(":root { caret-animation: manual }");
document.adoptedStyleSheets.push(still) }"""
_MOST_DIALOGS, _DIALOG_CHARACTERS = 20, 1000
"""Dialogs kept until they are read, and characters of each: a page may open any number."""
_TYPED_AT_ONCE = 200
"""Characters from which text is inserted as a whole: key events for each character would be slow."""


class NotLoadedError(EnvironmentFault):
    """An address could not be loaded."""


class ThrownError(EnvironmentFault):
    """An expression threw, or is no JavaScript."""


def is_web_address(url: str) -> bool:
    """Return True for an address of http or https: no other scheme opens a document of the caller's own making."""
    return re.match(r"https?:", url, re.IGNORECASE) is not None


class Page:
    """An attached tab; `session` None: over its own connection."""

    def __init__(
        self,
        devtools: DevTools,
        session: str | None,
        target_id: str,
        size: tuple[int, int] | None = None,
        opener: str | None = None,
    ) -> None:
        self.devtools, self.session, self.target_id = devtools, session, target_id
        self.opener = opener
        """Target id of the tab that opened this one."""
        self.cursor: Point = (0, 0)
        self.dialogs: list[str] = []
        """Texts of alert, confirm and prompt dialogs since the last read; each was answered immediately."""
        self.crashed = False
        self._size = size
        self._held = 0
        self._modifiers = 0
        self._stopped = asyncio.Event()
        self._stopped.set()

    async def prepare(self) -> None:
        """Subscribe to events; call once."""
        # Not `Runtime.enable`: each message of a page's console would be an event, of any size.
        await asyncio.gather(self.call("Page.enable"), self.call("Inspector.enable"))
        if self._size is not None:
            width, height = self._size
            await self.call(
                "Emulation.setDeviceMetricsOverride",
                {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
            )
            await self.call(
                "Page.addScriptToEvaluateOnNewDocument",
                {"source": _STILL_CARET, "worldName": "caret", "runImmediately": True},
            )

    async def call(
        self, method: str, params: dict[str, Any] | None = None, *, timeout: float = COMMAND_SECONDS
    ) -> dict[str, Any]:
        """Send a command to this tab; during a page change the command waits for its end."""
        clock = asyncio.get_running_loop().time
        until = clock() + _SWAP_SECONDS
        while True:
            try:
                return await self.devtools.call(
                    method, params, session=self.session, timeout=timeout
                )
            except RefusedError as refused:
                if _SWAPPING not in str(refused) or clock() > until:
                    raise
            await asyncio.sleep(_SWAP_PAUSE_SECONDS)

    def heard(self, method: str, params: dict[str, Any]) -> str | None:
        """Process an event of this tab; returns the command to send in response, if any (see `answer`)."""
        if method == "Page.frameStartedLoading" and params.get("frameId") == self.target_id:
            self._stopped.clear()
        elif method == "Page.frameStoppedLoading" and params.get("frameId") == self.target_id:
            self._stopped.set()
        elif method == "Page.javascriptDialogOpening":
            if len(self.dialogs) < _MOST_DIALOGS:
                text = f"{params.get('type')}: {params.get('message')}"
                self.dialogs.append(text[:_DIALOG_CHARACTERS])
            return "dialog"
        elif method == "Inspector.targetCrashed":
            self.crashed = True
            self._stopped.set()
            return "crash"
        return None

    async def answer(self, event: str) -> None:
        """Accept a dialog, which blocks the page until then, or handle a crash of the tab."""
        with contextlib.suppress(RefusedError):  # Another attached client answered first.
            if event == "dialog":
                await self.call("Page.handleJavaScriptDialog", {"accept": True})
            else:
                await self.call("Page.reload")
                self.crashed = False

    # -- what is shown ----------------------------------------------------------------------------

    async def size(self) -> tuple[int, int]:
        """Return width and height of the viewport."""
        if self._size is None:
            width, height = await self.evaluate(VIEWPORT)
            self._size = (int(width), int(height))
        return self._size

    async def screenshot(self, region: tuple[int, int, int, int] | None = None) -> bytes:
        """Return a PNG file of the viewport, or of a region of it, enlarged."""
        params: dict[str, Any] = {"format": "png"}
        if region is not None:
            params["clip"] = await self._clip(region)
        shot = await self.call("Page.captureScreenshot", params)
        return base64.b64decode(shot["data"])

    async def _clip(self, region: tuple[int, int, int, int]) -> dict[str, float]:
        x0, y0, x1, y1 = region
        width, _ = await self.size()
        seen = (await self.call("Page.getLayoutMetrics"))["cssVisualViewport"]
        return {
            "x": x0 + seen["pageX"],
            "y": y0 + seen["pageY"],
            "width": x1 - x0,
            "height": y1 - y0,
            "scale": width / (x1 - x0),
        }

    async def settle(self) -> None:
        """Wait for an action's effect: the end of a page load that it began, and two painted frames."""
        await asyncio.sleep(_BEGIN_SECONDS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_SECONDS):
                await self._stopped.wait()
        with contextlib.suppress(EnvironmentFault):
            # A busy page, or one being replaced, is shown in its current state.
            await self._evaluated(PAINTED, _PAINT_SECONDS)

    # -- where it is ------------------------------------------------------------------------------

    async def goto(self, url: str, *, timeout: float = LOAD_SECONDS) -> None:
        """Load `url` and wait until it has loaded, at most `timeout` seconds.

        Raises `NotLoadedError` if it cannot be loaded.
        """
        self._stopped.clear()
        navigation = await self.call("Page.navigate", {"url": url}, timeout=timeout)
        problem = navigation.get("errorText")
        if problem or "loaderId" not in navigation:
            self._stopped.set()
        if problem:
            raise NotLoadedError(f"The browser cannot load {url}: {problem}.")
        try:
            async with asyncio.timeout(timeout):
                await self._stopped.wait()
        except TimeoutError:
            raise NotLoadedError(f"{url} has not loaded within {timeout:g} s.") from None

    async def go(self, steps: int) -> bool:
        """Go back (-1) or forward (1) in the tab's history; False without such an entry."""
        history = await self.call("Page.getNavigationHistory")
        index = history["currentIndex"] + steps
        if not 0 <= index < len(history["entries"]):
            return False
        entry = history["entries"][index]["id"]
        await self.call("Page.navigateToHistoryEntry", {"entryId": entry})
        await self.settle()
        return True

    async def url(self) -> str:
        """Return the URL of the page."""
        history = await self.call("Page.getNavigationHistory")
        url: str = history["entries"][history["currentIndex"]]["url"]
        return url

    async def evaluate(self, expression: str, *, timeout: float = COMMAND_SECONDS) -> Any:
        """Return the value of a JavaScript expression in the page; promises are awaited.

        Raises `ThrownError` if it throws, `EnvironmentFault` if the page does not answer.
        """
        try:
            return await self._evaluated(expression, timeout)
        except RefusedError:
            # The page was being replaced; the next page can evaluate it.
            await self.settle()
            return await self._evaluated(expression, timeout)

    async def _evaluated(self, expression: str, timeout: float) -> Any:
        evaluation = await self.call(
            "Runtime.evaluate",
            {
                "expression": expression,
                "awaitPromise": True,
                "returnByValue": True,
                "userGesture": True,
            },
            timeout=timeout,
        )
        problem = evaluation.get("exceptionDetails")
        if problem is not None:
            description = (problem.get("exception") or {}).get("description") or problem.get("text")
            raise ThrownError(f"JavaScript {expression[:80]!r} threw {description}.")
        return evaluation["result"].get("value")

    async def compiles(self, expression: str) -> bool:
        """Return True if the browser can compile a JavaScript expression; the page has no influence on it."""
        await self.call("Runtime.enable")
        try:
            script = {"expression": expression, "sourceURL": "", "persistScript": False}
            compiled = await self.call("Runtime.compileScript", script)
        finally:
            await self.call("Runtime.disable")
        return "exceptionDetails" not in compiled

    async def responds(self) -> bool:
        """Return True if the page executes JavaScript: no script of its own occupies it."""
        with contextlib.suppress(EnvironmentFault):
            return bool(await self.evaluate("1", timeout=_RESPONSE_SECONDS) == 1)
        return False

    # -- mouse ------------------------------------------------------------------------------------

    async def move(self, point: Point) -> None:
        self.cursor = point
        await self._mouse("mouseMoved", "none")

    async def mouse_down(self, button: Button, count: int = 1) -> None:
        self._held |= _BUTTON_BITS[button]
        await self._mouse("mousePressed", button, count)

    async def mouse_up(self, button: Button, count: int = 1) -> None:
        self._held &= ~_BUTTON_BITS[button]
        await self._mouse("mouseReleased", button, count)

    async def scroll(self, right: int, down: int) -> None:
        await self._mouse("mouseWheel", "none", 0, deltaX=right, deltaY=down)

    async def _mouse(self, kind: str, button: str, count: int = 0, **more: float) -> None:
        x, y = self.cursor
        await self.call(
            "Input.dispatchMouseEvent",
            {
                "type": kind,
                "x": x,
                "y": y,
                "button": button,
                "buttons": self._held,
                "clickCount": count,
                "modifiers": self._modifiers,
                **more,
            },
        )

    # -- keyboard ---------------------------------------------------------------------------------

    async def type_text(self, text: str) -> None:
        """Type text: by key events for characters of the keyboard, unless the text is long."""
        if len(text) > _TYPED_AT_ONCE:
            await self.call("Input.insertText", {"text": text})
            return
        for value in text.replace("\r\n", "\n"):
            key = character(value)
            if key.code:
                await self.key_down(key)
                await self.key_up(key)
            else:
                await self.call("Input.insertText", {"text": value})

    async def key_down(self, key: Key) -> None:
        self._modifiers |= key.modifier
        if self._modifiers & 8:
            key = shifted(key)
        command = self._modifiers & 7  # With Ctrl, Alt or Meta held, keys type nothing.
        text = "" if command else key.text
        await self._key("keyDown" if text else "rawKeyDown", key, text=text)

    async def key_up(self, key: Key) -> None:
        self._modifiers &= ~key.modifier
        await self._key("keyUp", key)

    async def _key(self, kind: str, key: Key, **more: str) -> None:
        # Characters that need Shift set its modifier, also without a held Shift key.
        shift = 8 if key.name in SHIFTED_CHARACTERS else 0
        await self.call(
            "Input.dispatchKeyEvent",
            {
                "type": kind,
                "key": key.name,
                "code": key.code,
                "windowsVirtualKeyCode": key.key_code,
                "modifiers": self._modifiers | shift,
                **more,
            },
        )
