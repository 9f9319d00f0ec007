"""A page is shown as a screenshot, and its button is to be clicked: the policy sees pixels and answers with a point.

`pixels` is for training: its screenshots were taken by Chromium before, since a browser for each rollout takes more time than
everything else together. `pixels-live` opens each page in a browser of the run's own, and clicks in it.
"""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import AsyncGenerator
from pathlib import Path

from pages import SIDE, address_of, screenshot_file

from hud import Environment
from hud.environment import Answer
from hud.errors import UsageError
from hud.trace import ImageContent, Message, TextContent

INSTRUCTION = "Click the button."
POINT = re.compile(r"(\d{1,3}),(\d{1,3})")
"""The form of an answer: x and y, in pixels from the top left."""

env = Environment("pixels", version="1.0.0")
live = Environment("pixels-live", version="1.0.0")
browser = live.browser(viewport=(SIDE, SIDE), hosts=[], screen_only=True)


@env.template(id="click")
async def click(seed: int) -> AsyncGenerator[object, Answer]:
    """Click the button of a training page."""
    picture, boxes = screenshot_file(seed), screenshot_file(seed).with_suffix(".txt")
    if not boxes.exists():
        raise UsageError(f"{picture} is missing; examples/pixels/demo.py takes the screenshots.")
    answer = yield prompt(picture.read_bytes())
    left, top, right, bottom = map(float, boxes.read_text().split())
    point = point_of(answer)
    yield float(point is not None and left <= point[0] < right and top <= point[1] < bottom)


@live.template(id="click-live")
async def click_live(seed: int) -> AsyncGenerator[object, Answer]:
    """Click the button of a held-out page."""
    await browser.goto(address_of(seed, held_out=True))
    answer = yield prompt(await browser.screenshot())
    point = point_of(answer)
    if point is not None:
        await browser.evaluate(f"document.elementFromPoint({point[0]}, {point[1]})?.click()")
    yield float(await browser.evaluate("document.title == 'pressed'"))


@live.template(id="render")
async def render(first: int, pages: int) -> AsyncGenerator[object, Answer]:
    """Take the screenshots of training pages, with the place that Chromium gives each button."""
    yield "Nothing is to be done."
    for seed in range(first, first + pages):
        await browser.goto(address_of(seed))
        box = "(b => [b.left, b.top, b.right, b.bottom].join(' '))"
        text = await browser.evaluate(
            f"{box}(document.querySelector('button').getBoundingClientRect())"
        )
        await asyncio.to_thread(write, screenshot_file(seed), await browser.screenshot(), text)
    yield 1.0


def write(file: Path, screenshot: bytes, box: str) -> None:
    """Write a screenshot, then its button's place: where there is one, both are complete."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(screenshot)
    file.with_suffix(".txt").write_text(box)


def prompt(screenshot: bytes) -> list[Message]:
    """Return the prompt of a page."""
    image = ImageContent(data=base64.b64encode(screenshot).decode(), mime_type="image/png")
    return [Message(role="user", content=[image, TextContent(text=INSTRUCTION)])]


def point_of(answer: str) -> tuple[int, int] | None:
    """Return the point that an answer names."""
    point = POINT.fullmatch(str(answer).strip())
    return None if point is None else (int(point[1]), int(point[2]))
