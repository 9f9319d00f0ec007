"""Arguments as models and their servers write them: null, blank text, and nothing, where nothing is meant."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import pytest
from pydantic import BaseModel, Field

from hud.environment.tools.tool import Tool
from hud.errors import UsageError


def search(
    query: str = "all",
    limit: int = None,  # noqa: RUF013
    page: int = 1,
    near: Annotated[int, Field(ge=3)] = None,  # noqa: RUF013
):
    return f"{query} {limit} {page} {near}"


@pytest.mark.parametrize("arguments", ["null", "", " ", "\n", "{}", '""', {}])
async def test_null_and_blank_text_are_no_arguments(arguments):
    result = await Tool(search).call(arguments)
    assert (result.is_error, result.text) == (False, "all None 1 None")


@pytest.mark.parametrize("arguments", ["[]", "0", "false", "nil"])
async def test_other_values_are_refused(arguments):
    assert (await Tool(search).call(arguments)).is_error


@pytest.mark.parametrize("name", ["query", "limit", "page", "near"])
async def test_null_for_an_optional_argument_is_its_default(name):
    result = await Tool(search).call({name: None})
    assert (result.is_error, result.text) == (False, "all None 1 None")


async def test_an_argument_of_default_none_keeps_its_type_and_its_limits():
    properties = Tool(search).spec.parameters["properties"]
    assert properties["limit"]["anyOf"] == [{"type": "integer"}, {"type": "null"}]
    assert (await Tool(search).call({"near": 3})).text == "all None 1 3"
    for wrong in ({"limit": "many"}, {"near": 2}):
        assert (await Tool(search).call(wrong)).is_error


@dataclass
class Place:
    x: int
    y: int = 7


class Tree(BaseModel):
    name: str
    branches: list["Tree"] = []


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"place": {"x": 1, "y": None}}, "1 7 []"),
        ({"place": '{"x": 1, "y": 2}'}, "1 2 []"),
        ({"place": {"x": 1}, "trees": [{"name": "a", "branches": None}]}, "1 7 ['a']"),
        (
            {
                "place": {"x": 1},
                "trees": [{"name": "a", "branches": [{"name": "b", "branches": None}]}],
            },
            "1 7 ['a']",
        ),
        ({"place": {"x": 1, "y": None}, "trees": None}, "1 7 []"),
    ],
)
async def test_null_for_an_optional_field_is_its_default(value, expected):
    def go(place: Place, trees: list[Tree] = ()):
        return f"{place.x} {place.y} {[tree.name for tree in trees]}"

    result = await Tool(go).call(value)
    assert (result.is_error, result.text) == (False, expected)


async def test_null_for_a_required_field_is_refused_by_its_name():
    def go(place: Place):
        return place.x

    result = await Tool(go).call({"place": {"x": None}})
    assert result.is_error
    assert "place.x" in result.text


def test_an_argument_without_a_schema_is_refused_in_a_sentence():
    def wait(until: Iterator[int]):
        return until

    with pytest.raises(UsageError, match="wait: the type of an argument has no JSON schema"):
        Tool(wait)


async def test_null_for_a_required_argument_is_refused():
    def look(at: int):
        return at

    assert (await Tool(look).call({"at": None})).is_error
