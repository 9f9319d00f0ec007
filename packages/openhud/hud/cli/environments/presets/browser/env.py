"""TITLE: a browser for each run, on a shop of the run's own.

Try it:   hud eval FOLDER/tasks.py FOLDER/agent.py --all
"""

from site_of_run import Site

from hud import Environment

env = Environment("NAME")
browser = env.browser(hosts=["127.0.0.1"])


@env.initialize
async def open_shop():
    """Each run has a shop of its own."""
    env.state.site = Site()


@env.shutdown
async def close_shop():
    env.state.site.close()


@env.template(id="buy", description="Buy one thing in the shop.")
async def buy(item: str):
    await browser.goto(env.state.site.url)
    yield f"Buy one {item} in the shop that the browser shows."
    yield float(env.state.site.bought == [item])
