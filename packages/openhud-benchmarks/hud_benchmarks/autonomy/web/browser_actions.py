"""`BrowserActions`: mouse and keyboard of a script, which finds things on a page by the texts that a reader sees.

Each action is a call of the tool `page`, and so a step of the run's trace.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from hud.capabilities.browser.cdp import CDPClient
from hud.capabilities.keyboard import key_named
from hud.errors import EnvironmentFault
from hud.trace import ToolCall, ToolResult, ToolSpec

_LOAD_SECONDS = 10.0
_LOAD_PAUSE_SECONDS = 0.01
# Scrolls the one element to the middle of the window; returns where it is, and whether a click there leaves the page.
_FIND = """((kind, text, within) => {
  const plain = value => value.replace(/\\s+/g, " ").trim();
  const found = [...document.querySelectorAll(kind === "field" ? "label" : "a, button, summary, label")]
    .filter(one => plain(one.innerText) === text)
    .filter(one => within === null || plain((one.closest("tr, li, article, fieldset") || one).innerText).includes(within))
    .map(one => kind === "field" ? one.control : one);
  if (found.length !== 1) return found.length;
  const [element] = found;
  element.scrollIntoView({block: "center"});
  const leaves = element.matches("a[href], button");
  if (leaves) document.documentElement.dataset.left = "1";
  if (element.matches("select")) element.focus();
  const [box] = element.getClientRects();  // Of the first line, where a link has several.
  return {x: Math.round(box.left + box.width / 2), y: Math.round(box.top + box.height / 2), leaves};
})(%s, %s, %s)"""
_ARRIVED = "document.readyState === 'complete' && !document.documentElement.dataset.left"
_CHOSEN = "document.activeElement.selectedOptions?.[0]?.text.trim()"


class BrowserActions:
    """A script's way through the pages. Raises `EnvironmentFault` where a page has no such thing, or several."""

    def __init__(self, run: Any, screen: CDPClient) -> None:
        self.screen = screen
        self._run = run
        self._actions = 0
        run.attach(_PageTool(screen))

    async def click(self, text: str, within: str | None = None) -> None:
        """Click the link, button or label of this text; `within` is in the text of its row, item, article or fieldset."""
        await self._act(action="click", text=text, within=within)

    async def fill(self, label: str, text: str, within: str | None = None) -> None:
        """Replace the text of a field."""
        await self._act(action="fill", label=label, text=text, within=within)

    async def choose(self, label: str, option: str, within: str | None = None) -> None:
        """Choose an option of a list by typing its text. Raises `EnvironmentFault` where it has no such option."""
        await self._act(action="choose", label=label, option=option, within=within)

    async def _act(self, **arguments: str | None) -> None:
        self._actions += 1
        named = {name: value for name, value in arguments.items() if value is not None}
        call = ToolCall(id=f"action-{self._actions}", name="page", arguments=named)
        result = await self._run.call_tool(call)
        if result.is_error:
            raise EnvironmentFault(result.text)


class _PageTool:
    """The actions of a script on the page that a browser shows."""

    spec = ToolSpec(
        name="page",
        description="Click, fill in or choose what a text on the page names.",
        parameters={
            "type": "object",
            "properties": {
                "action": {"type": "string", "enum": ["click", "fill", "choose"]},
                **{name: {"type": "string"} for name in ("text", "label", "option", "within")},
            },
            "required": ["action"],
        },
    )

    def __init__(self, screen: CDPClient) -> None:
        self.screen = screen

    async def call(
        self, arguments: dict[str, Any] | str, timeout: float | None = None
    ) -> ToolResult:
        """Carry out an action; returns the address of the page."""
        del timeout
        assert isinstance(arguments, dict)
        actions: dict[str, Callable[..., Awaitable[None]]] = {
            "click": self._click,
            "fill": self._fill,
            "choose": self._choose,
        }
        options = {name: value for name, value in arguments.items() if name != "action"}
        try:
            await actions[arguments["action"]](**options)
            return ToolResult.of_text(await self.screen.url())
        except EnvironmentFault as fault:
            return ToolResult.of_text(str(fault), is_error=True)

    async def _click(self, text: str, within: str | None = None) -> None:
        place = await self._find("thing", text, within)
        await self._press(place)
        if place["leaves"]:
            await self._arrive(text)

    async def _fill(self, label: str, text: str, within: str | None = None) -> None:
        await self._press(await self._find("field", label, within))
        control, letter = key_named("Control"), key_named("a")
        for press in (control, letter):
            await self.screen.key_down(press)
        for press in (letter, control):
            await self.screen.key_up(press)
        if text:
            await self.screen.type_text(text)
        else:
            await self.screen.key_down(key_named("Delete"))
            await self.screen.key_up(key_named("Delete"))

    async def _choose(self, label: str, option: str, within: str | None = None) -> None:
        await self._find("field", label, within)
        await self.screen.type_text(option)
        if await self.screen.evaluate(_CHOSEN) != option:
            raise EnvironmentFault(f"{label!r} has no option {option!r}.")

    async def _find(self, kind: str, text: str, within: str | None) -> dict[str, Any]:
        place = await self.screen.evaluate(
            _FIND % (json.dumps(kind), json.dumps(text), json.dumps(within))
        )
        if isinstance(place, dict):
            return place
        where = f" in {within!r}" if within else ""
        raise EnvironmentFault(f"{await self.screen.url()} has {place} times {text!r}{where}.")

    async def _press(self, place: dict[str, Any]) -> None:
        await self.screen.move((place["x"], place["y"]))
        await self.screen.mouse_down("left")
        await self.screen.mouse_up("left")

    async def _arrive(self, text: str) -> None:
        """Wait for the page that a click loads."""
        clock = asyncio.get_running_loop().time
        until = clock() + _LOAD_SECONDS
        while not await self.screen.evaluate(_ARRIVED):
            if clock() > until:
                raise EnvironmentFault(f"{text!r} leads to no page.")
            await asyncio.sleep(_LOAD_PAUSE_SECONDS)
