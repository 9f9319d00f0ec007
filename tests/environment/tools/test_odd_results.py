"""Results of tools in any form arrive as what they are: blocks as blocks, items as items, data as JSON."""

import base64
import dataclasses
from collections import deque

import pytest
from mcp import types
from PIL import Image as Pillow

from hud.environment.mcp.connected_server import Choice
from hud.environment.tools.results import Image
from hud.environment.tools.tool import Tool
from hud.trace import ImageContent, TextContent

DATA = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
PICTURE = types.ImageContent(type="image", data=DATA, mime_type="image/png")
WRITTEN = {"type": "image", "data": DATA, "mimeType": "image/png"}
WORDS = types.TextContent(type="text", text="the screen")


@dataclasses.dataclass
class Point:
    x: int
    tags: set


def numbers():
    yield from (1, 2)


async def later():
    yield "a"
    yield Image(b"\x89PNG")


@pytest.mark.parametrize(
    ("value", "kinds"),
    [
        (Image(b"\x89PNG\xff"), [ImageContent]),
        (PICTURE, [ImageContent]),
        ([WORDS, PICTURE], [TextContent, ImageContent]),
        (["words", PICTURE], [TextContent, ImageContent]),
        (types.CallToolResult(content=[WORDS, PICTURE]), [TextContent, ImageContent]),
        (WRITTEN, [ImageContent]),
        ([{"type": "text", "text": "the screen"}, WRITTEN], [TextContent, ImageContent]),
        (Pillow.new("RGB", (2, 2)), [ImageContent]),
        (["words", Pillow.new("RGB", (2, 2))], [TextContent, ImageContent]),
    ],
)
async def test_blocks_stay_blocks_without_a_copy(value, kinds):
    result = await Tool(lambda: value, name="look").call({})
    assert [type(block) for block in result.content] == kinds
    assert (result.is_error, result.structured_content) == (False, None)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"at": Point(1, {2})}, '{"at":{"x":1,"tags":[2]}}'),
        (b"plain", "plain"),
        (b"\xff\x00", "[2 bytes of binary data]"),
        (float("nan"), "nan"),
        ({"n": 10**30}, f'{{"n":{10**30}}}'),
        (range(3), "[0,1,2]"),
        ({"a": 1}.items(), '[["a",1]]'),
        ({"a": 1}.values(), "[1]"),
        (deque([1, 2]), "[1,2]"),
        ({"type": "text", "text": "data"}, '{"type":"text","text":"data"}'),
        ({"at": WORDS}, '{"at":"the screen"}'),
    ],
)
async def test_data_is_readable(value, text):
    assert (await Tool(lambda: value, name="look").call({})).text == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"shot": Image(b"\x89PNG"), "n": 1}, '{"shot":"[image 1]","n":1}'),
        ([["a", Image(b"\x89PNG")], PICTURE.data], f'[["a","[image 1]"],"{DATA}"]'),
        (Point(Image(b"\x89PNG"), {2}), '{"x":"[image 1]","tags":[2]}'),
        ({"shot": PICTURE}, '{"shot":"[image 1]"}'),
    ],
)
async def test_images_within_data_are_images_beside_it(value, text):
    result = await Tool(lambda: value, name="look").call({})
    shown, image = result.content
    assert (shown.text, type(image)) == (text, ImageContent)
    assert DATA not in str(result.structured_content)


async def test_content_and_data_of_one_result_are_both():
    result = await Tool(lambda: ([WORDS, PICTURE], {"n": 10**30}), name="look").call({})
    assert [type(block) for block in result.content] == [TextContent, ImageContent]
    assert result.structured_content == {"n": 10**30}


async def test_generators_are_their_items():
    assert (await Tool(numbers).call({})).text == "[1,2]"
    kinds = [type(block) for block in (await Tool(later).call({})).content]
    assert kinds == [TextContent, ImageContent]


def test_two_tools_of_a_server_that_become_one_name_get_two():
    names = Choice("", None, ()).names(["get.user", "get_user", "get user"])
    assert names == {"get.user": "get_user_2", "get_user": "get_user", "get user": "get_user_3"}
