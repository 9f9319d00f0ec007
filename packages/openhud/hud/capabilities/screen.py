"""`Screen`: screenshots, mouse and keyboard of a browser's page or a desktop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from hud.capabilities.keyboard import Key

Button = Literal["left", "right", "middle", "back", "forward"]
Point = tuple[int, int]


class Screen(Protocol):
    """A screen, a mouse and a keyboard. Points are pixels from the top left, and `size` is width and height."""

    @property
    def size(self) -> tuple[int, int]: ...

    @property
    def cursor(self) -> Point:
        """Last position of the mouse."""
        ...

    async def screenshot(self, region: tuple[int, int, int, int] | None = None) -> bytes:
        """Return a PNG file of the screen, or of `region` (x0, y0, x1, y1) enlarged to the screen's size."""
        ...

    async def move(self, point: Point) -> None: ...

    async def mouse_down(self, button: Button, count: int = 1) -> None:
        """Press a button at the mouse position; `count` 2 is the second press of a double click."""
        ...

    async def mouse_up(self, button: Button, count: int = 1) -> None: ...

    async def scroll(self, right: int, down: int) -> None:
        """Scroll at the mouse position, by approximately that many pixels."""
        ...

    async def type_text(self, text: str) -> None: ...

    async def key_down(self, key: Key) -> None: ...

    async def key_up(self, key: Key) -> None: ...

    async def settle(self) -> None:
        """Wait, briefly, until an action's effect is visible: a page has loaded, the screen no longer changes."""
        ...


async def click(screen: Screen, point: Point, button: Button = "left", count: int = 1) -> None:
    """Click once, or several times in a row."""
    await screen.move(point)
    for number in range(1, count + 1):
        await screen.mouse_down(button, number)
        await screen.mouse_up(button, number)


async def drag(screen: Screen, path: Sequence[Point], button: Button = "left") -> None:
    """Press a button at the first point, release it at the last."""
    await screen.move(path[0])
    await screen.mouse_down(button)
    try:
        for point in path[1:]:
            await screen.move(point)
    finally:
        await screen.mouse_up(button)


async def press(screen: Screen, keys: Sequence[Key]) -> None:
    """Press keys together, as in a shortcut."""
    held: list[Key] = []
    try:
        for key in keys:
            held.append(key)
            await screen.key_down(key)
    finally:
        for key in reversed(held):
            await screen.key_up(key)
