"""JSON of foreign data: integers of any size are read and written digit by digit, everything else as `orjson` does."""

import json
import math

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hud import exact_json

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.integers(-(2**140), 2**140)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text("ab0123456789"), inner),
)


@given(VALUES)
def test_what_is_written_is_read_back(value):
    written = exact_json.dumps(value)
    assert exact_json.loads(written) == exact_json.loads(written.decode()) == value
    assert json.loads(written) == value


@pytest.mark.parametrize(
    "number",
    [
        2**63,
        -(2**63) - 1,
        2**64 - 1,
        2**64,
        10**19,
        10**25,
        -(10**25),
        10**400,
        math.factorial(200),
    ],
    ids="abcdefghi",
)
def test_an_integer_keeps_its_digits_and_its_type(number):
    nested = "[" * 150 + str(number) + "]" * 150
    for document in (f"{number}", f'{{"a": [0.5, {number}]}}', nested):
        for data in (document, document.encode(), bytearray(document.encode())):
            read = exact_json.loads(data)
            assert read == json.loads(document)
            assert str(number) in str(read)


def test_an_integer_is_read_at_any_depth():
    assert str(10**30) in str(exact_json.loads("[" * 900 + str(10**30) + "]" * 900))


@pytest.mark.parametrize(
    "document",
    [
        '{"team": "00000000000000000000000000000000"}',
        "[9999999999999999999, 0.12345678901234567890]",
    ],
)
def test_digits_that_are_no_integer_beyond_64_bits_are_read_once(monkeypatch, document):
    monkeypatch.setattr(exact_json, "_exactly", None)
    assert exact_json.loads(document) == json.loads(document)


@pytest.mark.parametrize(
    "document",
    [
        "0.12345678901234567890123",
        '"12345678901234567890123"',
        "[1e25, 12345678901234567890123.5]",
        "[-0.00012345678901234567, 9007199254740993.0]",
    ],
)
def test_long_digits_that_are_no_integer_are_read_as_before(document):
    assert exact_json.loads(document) == orjson.loads(document)


@pytest.mark.parametrize(
    "document",
    ["1e400", "NaN", "[Infinity]", '"\\ud800"', "", "{", "[1,]", "9" * 5_000, "[" * 3_000],
)
def test_what_was_refused_is_refused_beside_a_long_integer_too(document):
    for data in (document, f"[{10**30}, {document}]", f"[{10**400}, {document}]"):
        with pytest.raises(exact_json.JSONDecodeError):
            exact_json.loads(data)


@pytest.mark.parametrize("document", ["[" * 1_020 + "1" * 25 + "]" * 1_020, "[" * 50_000])
def test_a_document_that_is_nested_too_deep_is_refused(document):
    with pytest.raises(exact_json.JSONDecodeError):
        exact_json.loads(document)


@pytest.mark.parametrize("depth", [300, 2_000])
@pytest.mark.parametrize("inner", [1, 10**30])
def test_a_value_that_is_nested_too_deep_is_refused_as_such(depth, inner):
    value = inner
    for _ in range(depth):
        value = [value]
    with pytest.raises(exact_json.NestedTooDeepError):
        exact_json.dumps(value)


def nested(levels, around=("[", "]")):
    return (around[0] * levels + "1" + around[1] * levels).encode()


@pytest.mark.parametrize(
    ("document", "deep"),
    [
        (nested(230), False),
        (nested(231), True),
        (nested(231, ('{"a":', "}")), True),
        (nested(115, ('[{"a":', "}]")), False),
        (nested(116, ('[{"a":', "}]")), True),
        (b"[" + b",".join([nested(3)] * 5_000) + b"]", False),
        (json.dumps(["[" * 5_000, '"[' * 5_000, "\\[" * 5_000, "]" * 5_000]).encode(), False),
        (json.dumps(["]" * 5_000]).encode()[:-1] + b"," + nested(240) + b"]", True),
        (b"[" * 5_000, True),
        (b'["' + b"\\n" * 1_000_000, False),
    ],
)
def test_brackets_of_a_document_are_counted_outside_of_its_texts(document, deep):
    assert exact_json.is_nested_deep(document) is deep


def test_long_integers_are_written_wherever_they_are():
    number = 10**30
    options = exact_json.OPT_NON_STR_KEYS | exact_json.OPT_SORT_KEYS
    value = {"b": (number, {3, number}), "a": {number: -number}}
    written = exact_json.dumps(value, default=sorted, option=options)
    assert written.decode() == f'{{"a":{{"{number}":-{number}}},"b":[{number},[3,{number}]]}}'


@pytest.mark.parametrize("value", [{1: 2}, object(), "\ud800", 10**5_000, {10**30: 1}], ids="abcde")
def test_a_value_without_a_json_form_is_refused(value):
    with pytest.raises(exact_json.JSONEncodeError):
        exact_json.dumps([10**30, value])


def test_a_value_that_holds_itself_is_refused():
    value = [10**30]
    value.append(value)
    with pytest.raises(exact_json.JSONEncodeError):
        exact_json.dumps(value)
