"""Scripts that read screenshots by arithmetic: the oracle, and the apprentice that the demo's policy first imitates."""

from __future__ import annotations

import base64
import io
import random

import numpy as np
from pages import CELLS, SIDE, centre_of
from PIL import Image

from hud.agents import ScriptedAgent
from hud.trace import ChatMessage, ToolSpec, Trace

SLIPS = 0.2
"""How often the apprentice clicks at random."""


def button_cell(screenshot: bytes) -> int:
    """Return the cell of the pixels that are unlike the corner's."""
    pixels = np.asarray(Image.open(io.BytesIO(screenshot)).convert("RGB")).astype(int)
    rows, columns = np.nonzero(np.abs(pixels - pixels[0, 0]).sum(-1) > 60)
    row, column = (int(places.mean()) * CELLS // SIDE for places in (rows, columns))
    return row * CELLS + column


def click_of(messages: list[ChatMessage]) -> int:
    """Return the cell of the button that the conversation shows."""
    (image,) = (part for part in messages[-1]["content"] if part["type"] == "image_url")
    return button_cell(base64.b64decode(image["image_url"]["url"].partition(",")[2]))


def answer(cell: int) -> str:
    """Return a click at the centre of a cell, in the form that the environment asks for."""
    x, y = centre_of(cell)
    return f"{x},{y}"


def solve(messages: list[ChatMessage], tools: list[ToolSpec], trace: Trace) -> str:
    """Click the button."""
    del tools, trace
    return answer(click_of(messages))


agent = ScriptedAgent(solve, name="oracle")
"""Clicks every button: `hud eval examples/pixels/held_out.py examples/pixels/scripted.py`."""


def apprentice(seed: int = 0) -> ScriptedAgent:
    """Return the imperfect agent whose runs the demo's policy first learns from."""
    luck = random.Random(seed)

    def play(messages: list[ChatMessage], tools: list[ToolSpec], trace: Trace) -> str:
        if luck.random() < SLIPS:
            return answer(luck.randrange(CELLS * CELLS))
        return solve(messages, tools, trace)

    return ScriptedAgent(play, name="apprentice")
