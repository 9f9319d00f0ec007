"""Pages that training never shows, each in a live browser.

    hud eval examples/pixels/held_out.py AGENT --all

In a file of its own, so that nobody trains on it by naming the wrong list.
"""

from env import click_live, live

from hud import Task, Taskset

__all__ = ["held_out", "live"]

PAGES = 120


def page(seed: int) -> Task:
    """Return the task of a page, named after its seed. Its agents get no tool for the browser: the answer is the click."""
    return click_live(seed=seed).model_copy(
        update={"slug": f"held-out-{seed:03d}", "agent_config": {"native_tools": []}}
    )


held_out = Taskset("pixels-held-out", map(page, range(PAGES)))
