"""Environment `miniwob`: a page of the package in a browser of the run's own, graded by the page.

An agent has screen, mouse, keyboard and addresses, and no JavaScript: it could call the page's own end of the task. The
page gives one reward: a second attempt in the same run counts for nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from hud.environment import Environment
from hud_benchmarks.miniwob.reward import PageReward
from hud_benchmarks.miniwob.site import Site

INSTRUCTION = "Do this on the page that the browser shows, with mouse and keyboard. Scroll where you miss something."

env = Environment("miniwob")
site = env.add(Site())
browser = env.browser(viewport=(500, 320), hosts=["127.0.0.1"], screen_only=True)


@env.template()
async def page(name: str, seed: int) -> AsyncGenerator[Any, Any]:
    """Do what a small web page asks for."""
    await browser.goto(f"{site.opened.url}{name}.html")
    reward = await PageReward.begin(browser.page, seed)
    yield f"{reward.request}\n\n{INSTRUCTION}"
    yield await reward.end()
