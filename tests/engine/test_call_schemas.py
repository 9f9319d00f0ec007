"""The schema of a forced call holds the definitions that a tool's arguments refer to, wherever they are."""

import enum

import pytest
from jsonschema import Draft202012Validator, ValidationError
from pydantic import BaseModel

from hud.engine.chat.tool_calls.json_calls import call_schema
from hud.environment.tools.tool import Tool
from hud.trace import ToolSpec


class Colour(enum.Enum):
    RED = "red"


class Size(enum.Enum):
    RED = 1


class Tree(BaseModel):
    name: str
    children: list["Tree"] = []


def paint(colour: Colour, tree: Tree):
    pass


def cut(colour: Size):
    pass


POINTED = ToolSpec(
    name="pointed",
    parameters={
        "type": "object",
        "properties": {
            "a": {"type": "integer"},
            "b": {"$ref": "#/properties/a"},
            "again": {"$ref": "#"},
        },
        "additionalProperties": False,
    },
)
TOOLS = [Tool(paint).spec, Tool(cut).spec, POINTED, ToolSpec(name="plain")]


@pytest.mark.parametrize("tools", [TOOLS, TOOLS[:1] + TOOLS[2:3]])
@pytest.mark.parametrize("key", ["arguments", "parameters"])
def test_references_are_resolved_in_the_tools_own_schema(tools, key):
    schema = call_schema(tools, key)
    Draft202012Validator.check_schema(schema)
    check = Draft202012Validator(schema).validate
    tree = {"name": "a", "children": [{"name": "b", "children": []}]}
    check({"name": "paint", key: {"colour": "red", "tree": tree}})
    check({"name": "pointed", key: {"a": 1, "b": 2, "again": {"b": 3}}})
    for wrong in (
        {"name": "paint", key: {"colour": 1, "tree": tree}},
        {"name": "paint", key: {"colour": "red", "tree": {"children": [1]}}},
        {"name": "pointed", key: {"b": "two"}},
        {"name": "pointed", key: {"again": {"b": "two"}}},
    ):
        with pytest.raises(ValidationError):
            check(wrong)


def test_one_tool_is_described_alone():
    check = Draft202012Validator(call_schema([Tool(cut).spec])).validate
    check({"name": "cut", "arguments": {"colour": 1}})
    with pytest.raises(ValidationError):
        check({"name": "cut", "arguments": {"colour": "red"}})
