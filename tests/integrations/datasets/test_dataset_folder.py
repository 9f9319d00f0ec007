"""`datasets`, as released, loads a folder that `hud export --to hf` wrote: `scripts/setup-integration datasets`."""

import json

import pytest

pytest.importorskip("datasets", reason="scripts/setup-integration datasets")

import datasets
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hud_integrations.datasets import COLUMNS, DatasetFolder

datasets.disable_progress_bars()
JOB = {"id": "7" * 32, "name": 'the "first": job |\nof two'}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)  # fmt: skip
TEXT = st.none() | st.text(max_size=8)
CALL = st.fixed_dictionaries(
    {
        "id": st.text(max_size=3),
        "type": st.just("function"),
        "function": st.fixed_dictionaries({"name": st.text(max_size=5), "arguments": VALUES}),
    }
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool"]), "content": TEXT},
    optional={"reasoning_content": TEXT, "tool_calls": st.lists(CALL, max_size=2), "tool_call_id": TEXT},
)  # fmt: skip
SAMPLE = st.fixed_dictionaries(
    {
        "prompt_token_ids": st.lists(st.integers(0, 9), max_size=3),
        "output_token_ids": st.lists(st.integers(0, 9), max_size=3),
        "output_logprobs": st.lists(st.floats(-9, 0), max_size=3),
        "checkpoint": TEXT,
        "temperature": st.floats(0, 2),
    }
)
BY_KIND = {"string": TEXT, "int64": st.integers(0, 9), "float64": st.none() | st.floats(0, 1)}
LINE = st.fixed_dictionaries(
    {name: BY_KIND[kind] for name, kind in COLUMNS.items() if isinstance(kind, str)}
    | dict.fromkeys(("args", "states", "grade"), VALUES)
    | {name: st.lists(MESSAGE, max_size=2) for name in ("completion", "messages")}
    | {
        "samples": st.lists(SAMPLE, max_size=2),
        "pictures": st.just([]),
        "usage": st.fixed_dictionaries({name: st.integers(0, 9) for name in COLUMNS["usage"]}),
    }
)


def loaded(folder, lines):
    written = DatasetFolder(folder)
    for line in lines:
        written.add(line)
    written.close(JOB)
    return datasets.load_dataset(str(folder), split="train", cache_dir=str(folder / "cache"))


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(LINE, min_size=1, max_size=3))
def test_every_run_is_a_row_whatever_the_first_one_holds(tmp_path_factory, lines):
    rows = loaded(tmp_path_factory.mktemp("runs"), lines)
    assert rows.column_names == list(COLUMNS)
    assert len(rows) == len(lines)
    for row, line in zip(rows, lines, strict=True):
        assert row["reward"] == line["reward"]
        assert [one["content"] for one in row["messages"]] == [
            one["content"] for one in line["messages"]
        ]
        assert row["samples"] == line["samples"]
        if line["args"] is not None and not isinstance(line["args"], str):
            assert json.loads(row["args"]) == line["args"]


def test_a_chat_template_takes_the_messages(tmp_path):
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": {"at": 3}}}
    messages = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "nothing", "tool_call_id": "1"},
    ]
    line = dict.fromkeys(COLUMNS) | {"messages": messages, "completion": [], "samples": []}
    line |= {"pictures": [], "usage": {}, "slug": "look", "attempt": 0}
    (row,) = loaded(tmp_path / "one", [line])
    (asked,) = row["messages"][1]["tool_calls"]
    assert json.loads(asked["function"]["arguments"]) == {"at": 3}
    assert row["messages"][0]["tool_calls"] is None
    assert row["reward"] is None
