"""Programs on a desktop: how one begins with its files, and the computer of a script that uses it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hud.errors import EnvironmentFault

if TYPE_CHECKING:
    from hud.environment.screens.desktop import Desktop

SIZE = (1024, 768)
VARIABLES = {"GSETTINGS_BACKEND": "keyfile", "NO_AT_BRIDGE": "1"}
"""Settings from a file of the home, and no bus."""
NEEDS = ("Xvfb", "x11vnc", "openbox", "bubblewrap")
_HOME = "/home/agent/.config"
_SETTINGS = {
    # A caret that blinks is a picture that never stands still.
    f"{_HOME}/gtk-3.0/settings.ini": "[Settings]\ngtk-cursor-blink=0\n",
    f"{_HOME}/glib-2.0/settings/keyfile": "[org/xfce/mousepad/preferences/view]\nshow-line-numbers=true\n\n"
    "[org/xfce/mousepad/state/window]\nwidth=uint32 960\nheight=uint32 680\n\n"
    # Text that is completed is not what was typed.
    "[org/gnome/gnumeric/core/gui/editing]\nautocomplete=false\n\n"
    "[org/gnome/gnumeric/core/gui/toolbars]\nobject-visible=false\n",
}
# Long enough for a machine that is busy: a window is shown before its content, and a file is saved after the key.
_STILL, _LONGEST, _SHOWN_SECONDS = 1.5, 10.0, 60.0
_LOOKS, _LOOK_SECONDS = 20, 0.5
_HOVER_SECONDS = 2.0


async def begin(desktop: Desktop, files: Mapping[str, str | bytes], program: str) -> None:
    """Write the files and start a program with them; return when its window is shown and stands still.

    Raises `EnvironmentFault` where no window is shown.
    """
    contents: dict[str, str | bytes] = {**_SETTINGS, **files}
    for path, content in contents.items():
        await desktop.write(path, content)
    await desktop.start(program)
    try:
        async with asyncio.timeout(_SHOWN_SECONDS):
            while not await desktop.opened.viewer.stand_still(_STILL, _LONGEST):
                pass
    except TimeoutError:
        raise EnvironmentFault(
            f"{program!r} shows no window within {_SHOWN_SECONDS:g} s; is it installed (scripts/setup-worlds)?"
        ) from None


async def end(desktop: Desktop) -> None:
    """End the programs once they have done what was asked of them last, so that files change no more."""
    await desktop.opened.viewer.stand_still(_STILL, _LONGEST)
    await desktop.end_all()


class Computer:
    """The computer tool of a script that knows that each of its actions shows.

    Raises `EnvironmentFault` where an action fails, or nothing has changed on the screen a while after it.
    """

    def __init__(self, run: Any, screen: Any) -> None:
        from hud.agents.native.computer import ComputerTool

        self._run = run
        self._actions = 0
        self._picture: object = None
        self._mouse: tuple[int, int] | None = None
        run.attach(ComputerTool(screen))

    async def click(self, x: int, y: int) -> None:
        """Click a point of the screen.

        The mouse goes there first, and what is under it changes: that is not to be taken for what the click does.
        """
        if self._mouse != (x, y):
            self._mouse = (x, y)
            await self._act(action="move", x=x, y=y)
            self._picture = await self._call(action="wait", seconds=_HOVER_SECONDS)
        await self._act(action="click", x=x, y=y)

    async def press(self, *keys: str) -> None:
        """Press keys together."""
        await self._act(action="key", keys=list(keys))

    async def type(self, text: str) -> None:
        """Type text; a line feed is the Enter key, a tab the Tab key."""
        await self._act(action="type", text=text)

    async def _act(self, **arguments: Any) -> None:
        if self._picture is None:
            self._picture = await self._call(action="screenshot")
        picture = await self._call(**arguments)
        for _ in range(_LOOKS):
            if picture != self._picture:
                break
            picture = await self._call(action="wait", seconds=_LOOK_SECONDS)
        else:
            raise EnvironmentFault(f"Nothing changed on the screen after {arguments}.")
        self._picture = picture

    async def _call(self, **arguments: Any) -> object:
        """Call the tool; return the picture that it answers with."""
        from hud.trace import ToolCall

        self._actions += 1
        call = ToolCall(id=f"action-{self._actions}", name="computer", arguments=arguments)
        result = await self._run.call_tool(call)
        if result.is_error:
            raise EnvironmentFault(f"{arguments} failed: {result.text}")
        return result.content[-1]
