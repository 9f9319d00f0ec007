"""Whatever happened is recorded; what JSON has no form for is recorded as text."""

import numpy as np
import pytest

from hud import exact_json
from hud.trace import AgentStep, Sample, Step, ToolCall, ToolStep, parse_step
from hud.trace.recording.journal import encode_json, encode_step

nest: dict = {}
nest["self"] = nest


class Thing:
    def __repr__(self):
        return "<a thing>"


@pytest.mark.parametrize(
    ("value", "recorded"),
    [
        (Thing(), "<a thing>"),
        (np.float32(1.5), 1.5),
        ({1: Thing()}, {"1": "<a thing>"}),
        ("half \ud800 a pair", "half \\ud800 a pair"),
        (b"\xff", "\\xff"),
        (float("nan"), None),
        (10**30, 10**30),
    ],
)
def test_odd_values_are_recorded(value, recorded):
    for data in (
        encode_step(Step(extra={"state": value})),
        encode_json({"extra": {"state": value}}),
    ):
        read = exact_json.loads(data)["extra"]["state"]
        assert read == recorded or str(recorded) in str(read)


def test_a_nest_without_end_is_cut():
    assert b"self" in encode_step(Step(extra=nest))
    assert b"self" in encode_json(nest)


def test_nulls_among_arguments_are_kept():
    step = ToolStep(step_id=1, call=ToolCall(id="1", name="x", arguments={"a": None, "b": [None]}))
    assert parse_step(exact_json.loads(encode_step(step))) == step


def test_a_step_leaves_its_tokens_to_their_columns():
    sample = Sample(prompt_token_ids=[1], output_token_ids=[2], output_logprobs=[-1.0])
    assert "sample" not in exact_json.loads(encode_step(AgentStep(sample=sample)))
    sample.prompt_chunks = [{"type": "image"}]
    assert exact_json.loads(encode_step(AgentStep(sample=sample)))["sample"] == {
        "prompt_chunks": [{"type": "image"}]
    }


@pytest.mark.parametrize("number", [10**4300, -(10**5000), 1 << 40_000], ids="abc")
def test_an_integer_that_no_reader_accepts_is_recorded_as_its_hexadecimal_text(number):
    call = ToolCall(id="a", name="f", arguments={"n": number})
    step = AgentStep(extra={"state": [number]}, tool_calls=[call])
    read = parse_step(exact_json.loads(encode_step(step)))
    assert read.extra == {"state": [hex(number)]}
    assert read.tool_calls[0].arguments == {"n": hex(number)}
    assert read.started_at == step.started_at
    assert exact_json.loads(encode_json({"n": number})) == {"n": hex(number)}


@pytest.mark.parametrize("text", ["7" * 6000, "0." + "7" * 6000], ids="ab")
def test_long_digits_in_a_text_are_no_integer(text):
    step = AgentStep(content=text, extra={"longest": 10**4200})
    assert parse_step(exact_json.loads(encode_step(step))) == step


@pytest.mark.parametrize("levels", [exact_json.MOST_LEVELS + 1, 240, 252])
def test_what_is_nested_too_deep_for_a_store_is_cut_off(levels):
    nested: list = []
    for _ in range(levels):
        nested = [nested]
    step = Step(source="user", extra={"a": nested})
    for written in (encode_json({"a": nested}), encode_step(step)):
        assert not exact_json.is_nested_deep(written)
