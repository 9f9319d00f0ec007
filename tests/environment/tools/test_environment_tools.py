"""Tools: what a model is told of them, what they may answer, and that nothing in them ends a run."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import datetime
import enum
import functools
import sys
import threading
from pathlib import Path
from typing import Annotated, Any, Literal

import jsonschema
import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from hud.environment import Environment, Image
from hud.environment.tools.arguments import Arguments
from hud.errors import UsageError
from hud.trace import ImageContent, TextContent, ToolResult


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    x: int
    y: int = 0


@dataclasses.dataclass
class Size:
    width: float
    unit: str = "cm"


class Where(TypedDict):
    city: str


def tool_of(function, **options):
    env = Environment("tools")
    env.tool(**options)(function)
    return env, env.tool_specs[0]


async def called(function, arguments=None, *, timeout=None, **options):
    env, spec = tool_of(function, **options)
    async with env.run() as run:
        outcome = await run.call_tool(spec.name, arguments or {}, timeout=timeout)
    return outcome.result


# What a model is told.


def test_the_docstring_describes_the_tool_and_its_arguments():
    def weather(city: str, days: int = 3):
        """Forecast the weather.

        In whole degrees.

        Args:
            city: Name of the city,
                in English.
            days: How many days ahead.

        Returns:
            One line a day.
        """

    _, spec = tool_of(weather)
    assert spec.name == "weather"
    assert spec.description == "Forecast the weather.\n\nIn whole degrees."
    properties = spec.parameters["properties"]
    assert properties["city"]["description"] == "Name of the city, in English."
    assert properties["days"]["description"] == "How many days ahead."
    assert properties["days"]["default"] == 3
    assert spec.parameters["required"] == ["city"]
    assert spec.parameters["type"] == "object"


def test_sphinx_docstrings_are_read_too():
    def weather(city: str, days: int = 3):
        """Forecast the weather.

        :param city: Name of the city,
            in English.
        :param int days: How many days.
        :returns: A line.
        """

    _, spec = tool_of(weather)
    assert spec.description == "Forecast the weather."
    assert spec.parameters["properties"]["city"]["description"] == "Name of the city, in English."
    assert spec.parameters["properties"]["days"]["description"] == "How many days."


@pytest.mark.parametrize(
    ("annotation", "argument"),
    [
        (int, True),
        (int, "true"),
        (float, False),
        (int | None, True),
        (Literal[1, 2], True),
        (list[int], [1, True]),
        (list[int], "[1, true]"),
        (dict[str, list[float]], {"a": [False]}),
        (set[int], [True]),
        (Point, {"x": True}),
        (Size, {"width": True}),
        (float, "nan"),
        (float | None, "-Infinity"),
        (list[float], ["1e999"]),
        (Size, {"width": "nan"}),
    ],
)
async def test_neither_a_boolean_nor_a_text_without_a_value_is_a_number(annotation, argument):
    def tool(it):
        raise AssertionError("called")

    tool.__annotations__ = {"it": annotation}
    with pytest.raises(UsageError, match="are no numbers here"):
        Arguments(tool, "tool").validate_call({"it": argument})


@pytest.mark.parametrize("annotation", [bool, int | bool, Any])
async def test_a_boolean_stays_one(annotation):
    def tool(it):
        pass

    tool.__annotations__ = {"it": annotation}
    assert Arguments(tool, "tool").validate_call({"it": True})["it"] is True


@pytest.mark.parametrize(
    ("annotation", "good", "received", "bad"),
    [
        (int, 3, 3, "three"),
        (float, 3, 3.0, "much"),
        (bool, True, True, "perhaps"),
        (str, "x", "x", 7),
        (list[int], [1, 2], [1, 2], ["one"]),
        (dict[str, int], {"a": 1}, {"a": 1}, {"a": "one"}),
        (set[str], ["a"], {"a"}, 5),
        (tuple[int, str], [1, "a"], (1, "a"), [1]),
        (Literal["up", "down"], "up", "up", "left"),
        (Colour, "red", Colour.RED, "green"),
        (int | None, None, None, "none"),
        (Point, {"x": 1}, Point(x=1), {"y": 1}),
        (list[Point], [{"x": 1, "y": 2}], [Point(x=1, y=2)], [{}]),
        (Size, {"width": 2}, Size(2.0), {}),
        (Where, {"city": "Oslo"}, {"city": "Oslo"}, {}),
        (datetime.date, "2024-02-29", datetime.date(2024, 2, 29), "2023-02-29"),
        (Path, "/etc/hosts", Path("/etc/hosts"), 3),
        (Annotated[int, Field(ge=1, le=5)], 5, 5, 6),
        (Any, {"deep": [1]}, {"deep": [1]}, None),
    ],
)
async def test_annotations_become_schema_and_are_enforced(annotation, good, received, bad):
    seen = []

    def tool(value):
        seen.append(value)

    tool.__annotations__["value"] = annotation
    env, spec = tool_of(tool)
    jsonschema.Draft202012Validator.check_schema(spec.parameters)
    jsonschema.validate({"value": good}, spec.parameters)
    async with env.run() as run:
        assert not (await run.call_tool("tool", {"value": good})).result.is_error
        assert seen == [received]
        if annotation is not Any:
            refused = (await run.call_tool("tool", {"value": bad})).result
            assert refused.is_error
            assert "'value" in refused.text
            assert len(seen) == 1


def test_a_bare_decorator_works_and_the_function_stays_a_function():
    env = Environment("tools")

    @env.tool
    def double(x: int) -> int:
        """Double it."""
        return 2 * x

    assert double(4) == 8
    assert [spec.name for spec in env.tool_specs] == ["double"]


def test_name_and_description_can_be_given():
    _, spec = tool_of(lambda: "x", name="say_x", description="Says x.")
    assert (spec.name, spec.description) == ("say_x", "Says x.")


def test_two_tools_of_one_name_are_refused():
    env = Environment("tools")
    env.tool(name="look")(lambda: 1)
    with pytest.raises(UsageError, match="already has a tool 'look'"):
        env.tool(name="look")(lambda: 2)


def test_arguments_that_no_model_can_give_are_refused_at_once():
    with pytest.raises(UsageError, match="given by name"):
        tool_of(lambda *parts: parts, name="join")

    def positional(x, /):
        return x

    with pytest.raises(UsageError, match="given by name"):
        tool_of(positional)


async def test_argument_names_that_pydantic_uses_itself_work():
    def store(json: str, copy: bool = False, model_config: int = 1, schema: str = "s"):
        return f"{json} {copy} {model_config} {schema}"

    result = await called(store, {"json": "{}", "model_config": 7})
    assert result.text == "{} False 7 s"


async def test_a_tool_with_keywords_takes_any_argument():
    def log(level: str, **fields: Any):
        return {"level": level, **fields}

    result = await called(log, {"level": "info", "user": 7})
    assert result.structured_content == {"level": "info", "user": 7}


async def test_missing_unknown_and_wrong_arguments_are_told_in_one_sentence():
    def move(x: int, y: int):
        return x + y

    result = await called(move, {"x": "wide", "z": 1})
    assert result.is_error
    assert "argument 'x'" in result.text
    assert "argument 'y' is missing" in result.text
    assert "no argument 'z' (there are: x, y)" in result.text


async def test_what_models_quote_is_unquoted():
    def move(steps: list[int], fast: bool, note: str):
        return {"steps": steps, "fast": fast, "note": note}

    arguments = {"steps": "[1, 2]", "fast": "true", "note": "[3]"}
    result = await called(move, arguments)
    assert result.structured_content == {"steps": [1, 2], "fast": True, "note": "[3]"}


async def test_arguments_may_come_as_a_json_string():
    def move(x: int = 1):
        return x

    assert (await called(move, '{"x": 5}')).text == "5"
    assert (await called(move, "")).text == "1"
    for broken in ("{x: 5}", "[5]", "5"):
        result = await called(move, broken)
        assert result.is_error
        assert "must be a JSON object" in result.text


async def test_an_unknown_tool_is_a_tool_error_that_lists_what_there_is():
    env, _ = tool_of(lambda: 1, name="look")
    async with env.run() as run:
        result = (await run.call_tool("lok", {})).result
    assert result.is_error
    assert result.text == "There is no tool 'lok' (there are: look)."


# What a tool may answer.


@pytest.mark.parametrize(
    ("value", "text", "structured"),
    [
        ("plain", "plain", None),
        ("", "", None),
        (7, "7", None),
        (True, "true", None),
        ([1, "a"], '[1,"a"]', None),
        ({"a": [1]}, '{"a":[1]}', {"a": [1]}),
        ({1: Colour.RED}, '{"1":"red"}', {"1": "red"}),
        (Point(x=1), '{"x":1,"y":0}', {"x": 1, "y": 0}),
        ([Point(x=1)], '[{"x":1,"y":0}]', None),
        (Size(2.5), '{"width":2.5,"unit":"cm"}', {"width": 2.5, "unit": "cm"}),
        ({"when": datetime.date(2024, 2, 29)}, '{"when":"2024-02-29"}', {"when": "2024-02-29"}),
        ({"raw": b"ab"}, '{"raw":"ab"}', {"raw": "ab"}),
        ({"x": float("nan")}, '{"x":null}', {"x": None}),
    ],
)
async def test_answers_are_text_and_json(value, text, structured):
    result = await called(lambda: value, name="answer")
    assert not result.is_error
    assert result.text == text
    assert result.structured_content == structured


async def test_no_answer_is_an_empty_result():
    result = await called(lambda: None, name="quiet")
    assert (result.content, result.is_error) == ([], False)


async def test_images_and_text_may_be_mixed():
    png = b"\x89PNG"
    result = await called(lambda: ["Look:", Image(png), {"x": 1}], name="look")
    assert [type(block) for block in result.content] == [TextContent, ImageContent, TextContent]
    assert base64.b64decode(result.content[1].data) == png
    assert result.content[1].mime_type == "image/png"
    alone = await called(lambda: Image(b"jpg", mime_type="image/jpeg"), name="look")
    assert alone.content[0].mime_type == "image/jpeg"


async def test_a_tool_may_say_itself_that_it_failed():
    result = await called(lambda: ToolResult.of_text("no such row", is_error=True), name="find")
    assert result.is_error
    assert result.text == "no such row"


@pytest.mark.slow
async def test_fifty_megabytes_are_cut_and_said_to_be():
    result = await called(lambda: "ä" * 25_000_000, name="dump")
    size = len(result.text.encode())
    assert size < 300_000
    assert result.text.endswith("[cut: 50,000,000 bytes in all, the first 262,144 shown]")
    rows = await called(lambda: {"rows": ["x" * 1000] * 50_000}, name="dump")
    assert len(rows.text) < 300_000
    assert rows.structured_content is None


@pytest.mark.slow
async def test_an_image_of_fifty_megabytes_is_left_out():
    result = await called(lambda: [Image(b"x" * 50_000_000)], name="look")
    assert "left out" in result.text
    assert not any(isinstance(block, ImageContent) for block in result.content)


async def test_text_that_is_no_unicode_is_shown_as_far_as_it_can_be():
    result = await called(lambda: "caf\udce9.txt", name="names")
    assert not result.is_error
    assert result.text.startswith("caf")
    result.text.encode()
    listed = await called(lambda: {"name": "caf\udce9.txt"}, name="names")
    assert not listed.is_error
    assert "caf" in listed.text


# What may go wrong in a tool.


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    "error", [ValueError("no such row"), SystemExit(3), GeneratorExit("early")]
)
async def test_a_tool_that_raises_is_a_tool_error(error, is_async):
    def tool():
        raise error

    async def async_tool():
        raise error

    result = await called(async_tool if is_async else tool, name="find")
    assert result.is_error
    assert "find: " in result.text
    assert str(error) in result.text


async def test_a_long_error_is_cut():
    def find():
        raise ValueError("x" * 50_000_000)

    result = await called(find)
    assert result.is_error
    assert len(result.text) < 300_000


async def test_a_cancellation_of_the_tools_own_is_a_tool_error_and_the_run_goes_on():
    async def wait():
        inner = asyncio.ensure_future(asyncio.sleep(60))
        inner.cancel()
        await inner

    result = await called(wait)
    assert result.is_error
    assert "wait: CancelledError" in result.text


async def test_a_cancellation_from_outside_passes_through():
    async def wait():
        await asyncio.sleep(60)

    task = asyncio.ensure_future(called(wait))
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_tool_that_never_returns_times_out(is_async):
    ended = threading.Event()

    def wait():
        ended.wait(30)

    async def async_wait():
        await asyncio.sleep(30)

    result = await called(async_wait if is_async else wait, name="wait", timeout=0.05)
    ended.set()
    assert result.is_error
    assert result.text == "wait: no answer within 0.05 s."


async def test_the_tools_own_limit_holds_where_it_is_shorter():
    async def wait():
        await asyncio.sleep(30)

    env, _ = tool_of(wait, timeout=0.05)
    async with env.run() as run:
        result = (await run.call_tool("wait", {}, timeout=20)).result
    assert result.text == "wait: no answer within 0.05 s."


async def test_a_timeout_error_of_the_tools_own_is_not_called_the_limit():
    async def fetch():
        raise TimeoutError("the database is slow")

    assert (await called(fetch)).text == "fetch: TimeoutError: the database is slow"


async def test_sync_tools_run_off_the_event_loop_and_async_ones_on_it():
    threads = []

    def sync():
        threads.append(threading.get_ident())

    async def on_loop():
        threads.append(threading.get_ident())

    await called(sync)
    await called(on_loop)
    assert threads[0] != threading.get_ident()
    assert threads[1] == threading.get_ident()


async def test_sync_tools_of_many_runs_work_side_by_side():
    barrier = threading.Barrier(8, timeout=10)

    def meet():
        barrier.wait()  # Passes only when eight are inside at once.
        return "met"

    env, _ = tool_of(meet)

    async def one():
        async with env.run() as run:
            return (await run.call_tool("meet", {})).result.text

    assert await asyncio.gather(*(one() for _ in range(8))) == ["met"] * 8


async def test_the_event_loop_turns_while_a_sync_tool_works():
    release = threading.Event()

    def wait():
        assert release.wait(10)
        return "released"

    task = asyncio.ensure_future(called(wait))
    await asyncio.sleep(0.02)
    release.set()  # Reached only because the loop was not blocked.
    assert (await task).text == "released"


async def test_a_tool_may_be_an_object_or_a_partial():
    class Adder:
        __name__ = "add"

        def __call__(self, x: int) -> int:
            """Add one."""
            return x + 1

    class Slow:
        async def __call__(self, x: int, by: int) -> int:
            return x + by

    _, spec = tool_of(Adder())
    assert (spec.name, spec.description) == ("add", "Add one.")
    assert spec.parameters["properties"]["x"]["type"] == "integer"
    assert (await called(Adder(), {"x": 1})).text == "2"
    assert (await called(Slow(), {"x": 1, "by": 2})).text == "3"
    partial = functools.partial(Slow(), by=5)
    assert (await called(partial, {"x": 1}, name="five_more")).text == "6"


async def test_a_sync_function_that_gives_a_coroutine_is_awaited():
    async def inner():
        return "inner"

    assert (await called(lambda: inner(), name="outer")).text == "inner"


@pytest.mark.slow
async def test_a_hung_sync_tool_does_not_keep_the_process_alive(tmp_path):
    script = tmp_path / "hang.py"
    script.write_text(
        "import asyncio, time\n"
        "from hud import Environment\n"
        "env = Environment('hang')\n"
        "@env.tool(timeout=0.05)\n"
        "def hang():\n"
        "    time.sleep(3600)\n"
        "async def main():\n"
        "    async with env.run() as run:\n"
        "        print((await run.call_tool('hang', {})).result.text)\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(script), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    assert out.decode().strip() == "hang: no answer within 0.05 s."
    assert process.returncode == 0
