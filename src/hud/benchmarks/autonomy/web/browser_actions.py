"""`BrowserActions`: mouse and keyboard of a script, which finds things on a page by the texts that a reader sees."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hud.capabilities.browser.cdp import CDPClient
from hud.capabilities.keyboard import key_named
from hud.errors import EnvironmentFault

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

    def __init__(self, screen: CDPClient) -> None:
        self.screen = screen
        self.steps = 0
        """Number of clicks, of fields filled and of options chosen."""

    async def click(self, text: str, within: str | None = None) -> None:
        """Click the link, button or label of this text; `within` is in the text of its row, item, article or fieldset."""
        place = await self._find("thing", text, within)
        await self._press(place)
        if place["leaves"]:
            await self._arrive(text)

    async def fill(self, label: str, text: str, within: str | None = None) -> None:
        """Replace the text of a field."""
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

    async def choose(self, label: str, option: str, within: str | None = None) -> None:
        """Choose an option of a list by typing its text. Raises `EnvironmentFault` where it has no such option."""
        await self._find("field", label, within)
        self.steps += 1
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
        self.steps += 1
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
