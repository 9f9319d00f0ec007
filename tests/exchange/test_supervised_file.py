"""Supervised training on a file of conversations: the usual forms, masks by weight, tools of a row, and repeated commands."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.engine.tiny_policy import tiny_folder

from hud.cli.main import run
from hud.client import connect
from hud.train.supervised.examples import tokenized, usable_examples
from hud.train.supervised.recorded_runs import recorded_examples, runs_of_job
from hud.train.supervised.supervised_run import warm_up

PRICE = {
    "type": "function",
    "function": {
        "name": "price",
        "description": "Tell a price.",
        "parameters": {"type": "object", "properties": {"item": {"type": "string"}}},
    },
}
CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "price", "arguments": '{"item": "tea"}'},
}
CHAT = {
    "messages": [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "What does tea cost?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "weight": 0},
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
        {"role": "assistant", "content": "It costs 3.", "weight": 1},
    ],
    "tools": [PRICE],
}
SHAREGPT = {
    "conversations": [
        {"from": "human", "value": "What does tea cost?"},
        {"from": "function_call", "value": '{"name": "price", "arguments": {"item": "tea"}}'},
        {"from": "observation", "value": "3"},
        {"from": "gpt", "value": "It costs 3."},
    ],
    "system": "Be short.",
    "tools": json.dumps([PRICE["function"]]),
}


@pytest.fixture
def model(home):
    asyncio.run(connect().post("/v2/models/add", {"source": str(tiny_folder()), "name": "small"}))
    return "small"


def written(tmp_path, *rows):
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


async def samples_of(job):
    """The samples of a job's first run, as texts of prompt and output."""
    client = connect()
    examples = await recorded_examples(client, await runs_of_job(client, job))
    row = await client.get("/v2/models/resolve", params={"model": "small"})
    fitting = await tokenized(client, row["id"], usable_examples(examples, None), on_record=True)
    return [
        (sample.prompt_token_ids, sample.output_token_ids) for sample in fitting.payloads[0].samples
    ]


def test_the_same_conversation_in_both_forms_gives_the_same_tokens(tmp_path, model):
    plain = {**CHAT, "messages": [{**message, "weight": 1} for message in CHAT["messages"]]}
    jobs = []
    for name, row in (("a", plain), ("b", SHAREGPT)):
        (tmp_path / name).mkdir()
        path = written(tmp_path / name, row)
        assert run(["import", str(path), "--job", name]) == 0
    listed = asyncio.run(connect().get("/v2/jobs"))["items"]
    jobs = {row["name"]: row["id"] for row in listed}
    chat, sharegpt = asyncio.run(samples_of(jobs["a"])), asyncio.run(samples_of(jobs["b"]))
    assert chat == sharegpt
    assert len(chat) == 2


def test_turns_of_weight_0_are_context(tmp_path, model, capsys):
    path = written(tmp_path, CHAT)
    assert run(["import", str(path), "--job", "weighed"]) == 0
    (row,) = asyncio.run(connect().get("/v2/jobs"))["items"]
    ((prompt, output),) = asyncio.run(samples_of(row["id"]))
    assert len(prompt) > len(output) > 0
    path = written(tmp_path, {"messages": CHAT["messages"][:3]})
    assert run(["train", model, "--from", str(path)]) == 2
    assert "can be learned from" in capsys.readouterr().err


def test_a_file_is_trained_on_and_the_same_command_trains_nothing_more(tmp_path, model, capsys):
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"Say {n}."},
                {"role": "assistant", "content": f"{n}"},
            ]
        }
        for n in range(6)
    ]
    path = written(tmp_path, *rows)
    command = ["train", model, "--from", str(path), "--epochs", "2", "--batch", "3"]
    assert run(command) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "(openai): 6, imported as job" in out
    assert "learned from 6 runs in 4 steps" in out
    assert run(command) == 0
    assert "nothing is trained" in " ".join(capsys.readouterr().out.split())
    # Other rows of the job are not of the file.
    path = written(tmp_path, *rows[:3])
    report = asyncio.run(warm_up(model, file=path, batch=3))
    assert (report.runs, report.steps) == (3, 1)


def test_rows_that_are_edited_under_their_ids_begin_a_new_run(tmp_path, model):
    def learned(answer):
        said = [{"role": "user", "content": "Say."}, {"role": "assistant", "content": answer}]
        path = written(tmp_path, {"id": "a", "messages": said})
        return asyncio.run(warm_up(model, file=path))

    first, again, edited = learned("yes"), learned("yes"), learned("no")
    assert (again.run_id, again.first_step) == (first.run_id, 1)
    assert (edited.run_id != first.run_id, edited.first_step) == (True, 0)
    assert edited.first_loss != first.first_loss


def test_a_row_that_is_shortened_under_its_id_has_its_new_turns_alone(tmp_path, model):
    long = [*CHAT["messages"][:2], {"role": "assistant", "content": "One."}]
    long += [{"role": "user", "content": "More."}, {"role": "assistant", "content": "Two."}]
    for messages, turns in ((long, 2), (long[:3], 1)):
        path = written(tmp_path, {"id": "a", "messages": messages})
        assert run(["import", str(path), "--job", "edited"]) == 0
        (row,) = asyncio.run(connect().get("/v2/jobs"))["items"]
        assert len(asyncio.run(samples_of(row["id"]))) == turns


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({**CHAT, "tools": [{"type": "function", "function": {}}]}, "has no name"),
        (
            {"messages": [*CHAT["messages"][:2], {**CHAT["messages"][4], "weight": 0.5}]},
            "is 0 or 1",
        ),
    ],
)
def test_rows_in_another_form_are_named(tmp_path, model, capsys, row, sentence):
    path = written(tmp_path, CHAT, row)
    assert run(["train", model, "--from", str(path)]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "Row 2 of" in error
    assert sentence in error


def test_a_missing_file_is_named(model, capsys):
    assert run(["train", model, "--from", "none.jsonl"]) == 2
    assert "There is no file none.jsonl" in capsys.readouterr().err
