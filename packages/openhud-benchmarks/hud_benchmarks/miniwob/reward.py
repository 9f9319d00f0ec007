"""The reward of a page: reported by its document when the task ends, and kept outside of the browser.

The document reports through a DevTools binding of a secret name, which is deleted from it before the agent starts. A
report counts only from the document and tab in which the task began: not from one that was reloaded or navigated to.
"""

from __future__ import annotations

import json
import math
import secrets
from contextlib import suppress
from typing import Any, Self

from hud.capabilities.browser.devtools import RefusedError
from hud.capabilities.browser.page import Page
from hud.errors import EnvironmentFault
from hud.graders import EvaluationResult

# The page's clock is stopped: an agent's turn takes longer than its ten seconds.
_BEGIN = """((name, seed) => {
  const report = globalThis[name], text = JSON.stringify;
  delete globalThis[name];
  Math.seedrandom(seed);
  core.EPISODE_MAX_TIME = 2147483647;
  core.startEpisodeReal();
  core.startEpisode = () => {};
  core.clearTimer();
  core.hideDisplay();
  const end = core.endEpisode;
  core.endEpisode = (reward, proportional, reason) => {
    const running = core.EP_TIMER !== null;
    end(reward, proportional, reason);
    if (running) report(text([reward, reason || null]));
  };
  report("");
  return core.getUtterance();
})(%s)"""


class PageReward:
    """The first reward of a document; it has its document's request, too."""

    def __init__(self, page: Page) -> None:
        self.request = ""
        """The text that tells what to do."""
        self._page = page
        self._binding = f"report_{secrets.token_hex(16)}"
        self._document: int | None = None
        """Execution context of the task's document; its first report tells it."""
        self._report: str | None = None

    @classmethod
    async def begin(cls, page: Page, seed: int) -> Self:
        """Begin the task of the shown document with the seed."""
        reward = cls(page)
        page.devtools.listen(reward._hear)
        await page.call("Runtime.addBinding", {"name": reward._binding})
        reward.request = await page.evaluate(_BEGIN % f"{json.dumps(reward._binding)}, {seed}")
        return reward

    async def end(self) -> EvaluationResult:
        """Return the grade, without the package's penalty for time."""
        shown = await self._is_shown()  # Its answer comes after earlier reports.
        self._page.devtools.unlisten(self._hear)
        if self._report is None:
            content = "The page saw no end of the task." if shown else "The page is not the task's any more."  # fmt: skip
            return EvaluationResult(reward=0.0, content=content)
        value, reason = json.loads(self._report)
        # Pages give -1 for a failure; most successes are 1, some are a share.
        reward = float(value) if isinstance(value, int | float) and math.isfinite(value) else 0.0
        return EvaluationResult(reward=min(max(reward, 0.0), 1.0), content=reason)

    async def _is_shown(self) -> bool:
        with suppress(
            RefusedError, EnvironmentFault
        ):  # Another document, or a closed or hanging tab.
            await self._page.call(
                "Runtime.evaluate", {"expression": "0", "contextId": self._document}
            )
            return True
        return False

    def _hear(self, method: str, params: dict[str, Any], session: str | None) -> None:
        if method != "Runtime.bindingCalled" or session != self._page.session:
            return
        if params.get("name") != self._binding:
            return
        if self._document is None:
            self._document = params["executionContextId"]
        elif params["executionContextId"] == self._document and self._report is None:
            self._report = params["payload"]
