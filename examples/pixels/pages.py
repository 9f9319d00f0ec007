"""Pages with one button, made from seeds, and their screenshots.

A page differs from others in the place, size and colour of its button, its text, and its background. Held-out pages have
colours that no training page has.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from hud import settings

SIDE = 200
"""Width and height of a page, in pixels."""
CELLS = 3
"""Buttons are near the centres of CELLS x CELLS cells."""
_BANDS = 12
"""Bands of hues: the even ones are those of training, the odd ones of held-out pages."""
_WORDS = ("OK", "Go", "Next", "Save", "Send", "Yes")


@dataclass(frozen=True)
class Page:
    """A page and the place of its button."""

    html: str
    cell: int
    """Row times CELLS plus column."""


def page_of(seed: int, held_out: bool = False) -> Page:
    """Return the page of a seed."""
    random_ = random.Random(f"{seed} {held_out}")
    cell = random_.randrange(CELLS * CELLS)
    width, height = random_.randint(40, 60), random_.randint(30, 50)
    x, y = centre_of(cell)
    left = x - width // 2 + random_.randint(-8, 8)
    top = y - height // 2 + random_.randint(-8, 8)
    band = 2 * random_.randrange(_BANDS // 2) + held_out
    hue = (band + random_.random()) * 360 / _BANDS
    colour = f"hsl({hue:.0f} 80% {random_.randint(32, 48)}%)"
    background = f"hsl({random_.randint(0, 359)} 30% {random_.randint(88, 98)}%)"
    style = (
        f"position: absolute; left: {left}px; top: {top}px; width: {width}px; height: {height}px; "
        f"border: 0; background: {colour}; color: white"
    )
    html = (
        f'<!doctype html><body style="margin: 0; overflow: hidden; background: {background}">'
        f'<button style="{style}" onclick="document.title = \'pressed\'">{random_.choice(_WORDS)}</button>'
    )
    return Page(html, cell)


def centre_of(cell: int) -> tuple[int, int]:
    """Return the point, (x, y) in pixels, at the centre of a cell."""
    row, column = divmod(cell, CELLS)
    return SIDE * (2 * column + 1) // (2 * CELLS), SIDE * (2 * row + 1) // (2 * CELLS)


def address_of(seed: int, held_out: bool = False) -> str:
    """Return a page as a data URL."""
    return "data:text/html," + quote(page_of(seed, held_out).html)


def screenshot_file(seed: int) -> Path:
    """Return the file of a training page's screenshot, which `env.render` writes."""
    return settings.load().home / "cache" / "pixels" / f"page-{seed:04d}.png"
