"""Environment `miniwob`: a page of the package in a browser of the run's own, graded by the page.

The page's clock is stopped, as an agent's turn takes longer than its ten seconds, and its reward is taken as it is without
the penalty for time. It gives one reward: a second attempt in the same run counts for nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from hud.benchmarks.miniwob.site import Site
from hud.environment import Environment
from hud.graders import EvaluationResult

BEGIN = """(() => {
  Math.seedrandom(%d);
  core.EPISODE_MAX_TIME = 2147483647;
  core.startEpisodeReal();
  core.startEpisode = () => {};
  core.clearTimer();
  core.hideDisplay();
  return core.getUtterance();
})()"""
OUTCOME = """typeof WOB_DONE_GLOBAL === "undefined" ? null
  : {done: WOB_DONE_GLOBAL, reward: WOB_RAW_REWARD_GLOBAL, reason: WOB_REWARD_REASON || null}"""
INSTRUCTION = "Do this on the page that the browser shows, with mouse and keyboard. Scroll where you miss something."

env = Environment("miniwob")
site = env.add(Site())
browser = env.browser(viewport=(500, 320), hosts=["127.0.0.1"])


@env.template()
async def page(name: str, seed: int) -> AsyncGenerator[Any, Any]:
    """Do what a small web page asks for."""
    await browser.goto(f"{site.opened.url}{name}.html")
    request = await browser.evaluate(BEGIN % seed)
    yield f"{request}\n\n{INSTRUCTION}"
    outcome = await browser.evaluate(OUTCOME)
    if outcome is None:
        yield EvaluationResult(reward=0.0, content="The page is not the task's any more.")
    elif not outcome["done"]:
        yield EvaluationResult(reward=0.0, content="The page saw no end of the task.")
    else:
        # Pages give -1 for a failure; most successes are 1, some are a share.
        yield EvaluationResult(
            reward=min(max(float(outcome["reward"]), 0.0), 1.0), content=outcome["reason"]
        )
