"""Schemas of environments, which their authors choose, take no server's time: rows of tasks are checked against them."""

import pytest

from hud_platform.environments.manifests import faults

pytestmark = pytest.mark.timeout(60)
SLOW = "a" * 40 + "!"
"""Text on which `(a+)+$` needs 2^40 steps."""
EVIL = "^(a+)+$"
REFERENCES = {
    "$ref": "#/$defs/0",
    "$defs": {
        **{str(n): {"anyOf": [{"$ref": f"#/$defs/{n + 1}"}] * 2} for n in range(40)},
        "40": {"type": "integer"},
    },
}


@pytest.mark.parametrize(
    ("schema", "args"),
    [
        ({"properties": {"x": {"type": "string", "pattern": EVIL}}}, {"x": SLOW}),
        ({"patternProperties": {EVIL: {"type": "integer"}}}, {SLOW: "x"}),
        ({"patternProperties": {EVIL: {}}, "additionalProperties": False}, {SLOW: "x"}),
        ({"patternProperties": {EVIL: {}}, "unevaluatedProperties": False}, {SLOW: "x"}),
        ({"allOf": [{"patternProperties": {EVIL: {}}}], "unevaluatedProperties": False}, {SLOW: 1}),
        ({"propertyNames": {"pattern": EVIL}}, {SLOW: "x"}),
        ({"allOf": [{"properties": {"x": {"anyOf": [{"pattern": EVIL}] * 3}}}]}, {"x": SLOW}),
        (REFERENCES, {"x": "y"}),
        ({"$ref": "#"}, {"x": "y"}),
        ({"properties": {"x": {"$ref": "#"}}}, {"x": {"x": {"x": 1}}}),
    ],
)
def test_a_schema_is_left_to_its_environment_where_it_takes_long(schema, args):
    assert list(faults(args, schema)) == []


def test_what_takes_no_time_is_still_checked():
    schema = {
        "type": "object",
        "properties": {"n": {"$ref": "#/$defs/count"}, "word": {"pattern": "^a+$", "minLength": 2}},
        "additionalProperties": False,
        "required": ["n"],
        "$defs": {"count": {"type": "integer", "minimum": 1}},
    }
    assert list(faults({"n": 1, "word": "bbb"}, schema)) == []  # The environment reads patterns.
    found = " ".join(faults({"n": 0, "word": "b", "more": 1}, schema))
    for said in ("less than the minimum of 1", "too short", "'more' was unexpected"):
        assert said in found
    assert len(list(faults([{"n": 0}] * 50, {"items": schema, "$defs": schema["$defs"]}))) == 50
