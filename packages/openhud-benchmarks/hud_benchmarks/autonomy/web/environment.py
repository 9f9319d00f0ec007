"""Environment `autonomy-web`: one of the web applications in a browser of the run's own."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from hud.environment import Environment
from hud_benchmarks.autonomy.applications import WEB
from hud_benchmarks.autonomy.web.application import credentials
from hud_benchmarks.autonomy.web.grading import graded
from hud_benchmarks.autonomy.web.site import Site

INSTRUCTION = (
    "Do this in the web application that the browser shows, with mouse and keyboard. Only what is saved there counts. "
    "Change nothing that you are not asked to change."
)

env = Environment("autonomy-web")
site = env.add(Site())
browser = env.browser(viewport=(1024, 768), hosts=["127.0.0.1"])


@env.template()
async def work(application: str, kind: str, seed: int) -> AsyncGenerator[Any, Any]:
    """Do what is asked for in a web application."""
    app = WEB[application]
    goal = app.goal(kind, seed)
    before, expected = app.database(seed), app.database(seed)
    goal.apply(expected)
    site.opened.begin(app, seed)
    await browser.goto(site.opened.url)
    request = goal.instruction
    if app.user is not None:
        login, password = credentials(app, before)
        request += f"\n\nSign in as {login} with the password {password}."
    yield f"{request}\n\n{INSTRUCTION}"
    yield graded(before, expected, site.opened.state(), app.unjudged)
