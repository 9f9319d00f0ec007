"""Logs of calls and messages become runs: calls that repeat a conversation continue it."""

import asyncio
import json

import pytest
from tests.engine.tiny_policy import tiny_folder

from hud import TrainingClient
from hud.cli.main import run
from hud.client import connect
from hud.errors import UsageError
from hud.trace import parse_trace

ASK = {"role": "user", "content": "What does tea cost?"}
SYSTEM = {"role": "system", "content": "You keep a shop."}
CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "price", "arguments": '{"item": "tea"}'},
}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "3"}
USAGE = {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 5}}


def call(identifier, messages, message, at=1_760_000_000, reason="stop"):
    return {
        "request": {"model": "gpt", "messages": messages},
        "response": {
            "id": identifier,
            "model": "gpt-1",
            "created": at,
            "usage": USAGE,
            "choices": [{"message": message, "finish_reason": reason}],
        },
    }


def written(path, rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def steps_of(full):
    return parse_trace(full["trace"]).steps


def test_calls_are_linked_by_the_messages_that_they_repeat(tmp_path, imported):
    second = {"role": "assistant", "content": "It costs 3."}
    log = [
        call("a", [SYSTEM, ASK], CALLING, reason="tool_calls"),
        call(
            "other", [{"role": "user", "content": "Title?"}], {"role": "assistant", "content": "T"}
        ),
        call("b", [SYSTEM, ASK, {**CALLING, "content": ""}, RESULT], second, 1_760_000_005),
        # The history was rewritten: another run.
        call("c", [SYSTEM, ASK, CALLING, {**RESULT, "content": "4"}], second),
    ]
    main, rewritten, title = imported(written(tmp_path / "log.jsonl", log))
    assert [full["run"]["foreign_id"] for full in (main, rewritten, title)] == [
        "openai:a",
        "openai:c",
        "openai:other",
    ]
    prompt, turn, result, answer = steps_of(main)
    assert [message.role for message in prompt.messages] == ["system", "user"]
    assert turn.tool_calls[0].arguments == {"item": "tea"}
    assert (result.call.name, result.result.text) == ("price", "3")
    assert (answer.content, answer.usage.cached_tokens) == ("It costs 3.", 5)
    row = main["run"]
    assert (row["source"], row["model"], row["turns"], row["reward"]) == (
        "openai",
        "gpt-1",
        2,
        None,
    )
    assert (row["content"], row["prompt_tokens"], row["status"]) == ("It costs 3.", 18, "completed")
    assert row["started_at"].startswith("2025-10-09")


def test_a_log_that_grew_adds_to_its_runs(tmp_path, imported):
    first = call("a", [ASK], CALLING)
    assert len(imported(written(tmp_path / "log.jsonl", [first]))) == 1
    second = call("b", [ASK, CALLING, RESULT], {"role": "assistant", "content": "3"})
    (full,) = imported(written(tmp_path / "log.jsonl", [first, second]))
    assert [step.source for step in steps_of(full)] == ["user", "agent", "tool", "agent"]
    assert (full["run"]["turns"], full["run"]["content"]) == (2, "3")


def test_equal_calls_without_ids_are_different_runs(tmp_path, imported):
    row = {"input": "Hi", "output": "Hello"}
    assert len(imported(written(tmp_path / "log.jsonl", [row, row]))) == 2
    assert len(imported(tmp_path / "log.jsonl")) == 2


def test_conversations_with_rewards_and_pictures_are_runs(tmp_path, imported):
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8="}}
    shown = {"role": "user", "content": [{"type": "text", "text": "What is it?"}, picture]}
    row = {"id": "x", "reward": 0.5, "messages": [shown, {"role": "assistant", "content": "A cat"}]}
    (full,) = imported(written(tmp_path / "chats.jsonl", [row]))
    prompt, answer = steps_of(full)
    assert [block.type for block in prompt.messages[0].content] == ["text", "image"]
    assert (answer.content, full["run"]["reward"]) == ("A cat", 0.5)


def test_an_array_of_messages_is_one_run(tmp_path, imported):
    path = tmp_path / "chat.json"
    path.write_text(json.dumps([ASK, CALLING, RESULT, {"role": "assistant", "content": "3"}]))
    (full,) = imported(path)
    assert [step.source for step in steps_of(full)] == ["user", "agent", "tool", "agent"]


def test_bodies_of_the_responses_api_are_read(tmp_path, imported):
    opening = {"role": "user", "content": [{"type": "input_text", "text": "Price?"}]}
    reasoning = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Look it up."}]}
    asked = {"type": "function_call", "call_id": "c1", "name": "price", "arguments": "{}"}
    said = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "3"}],
    }
    log = [
        {
            "request": {"model": "m", "instructions": "Be short.", "input": [opening]},
            "response": {"id": "r1", "output": [reasoning, asked], "usage": {"input_tokens": 3}},
        },
        {
            "request": {
                "model": "m",
                "instructions": "Be short.",
                "input": [
                    *(opening, reasoning, asked),
                    {"type": "function_call_output", "call_id": "c1", "output": "3"},
                ],
            },
            "response": {"id": "r2", "output": [said]},
        },
    ]
    (full,) = imported(written(tmp_path / "log.jsonl", log))
    prompt, turn, result, answer = steps_of(full)
    assert prompt.messages[0].role == "system"
    assert (turn.reasoning, turn.tool_calls[0].name) == ("Look it up.", "price")
    assert (result.result.text, answer.content) == ("3", "3")


def test_a_run_without_ids_is_refused_by_training_and_taken_by_supervision(
    tmp_path, imported, capsys
):
    (full,) = imported(written(tmp_path / "log.jsonl", [call("a", [ASK], CALLING)]))
    assert "1 run without token ids" in capsys.readouterr().out

    asyncio.run(connect().post("/v2/models/add", {"source": str(tiny_folder()), "name": "small"}))
    trace = full["run"]["trace_id"]
    with pytest.raises(UsageError, match="imported from openai and has no token ids"):
        asyncio.run(TrainingClient("small").forward_backward([trace]))
    assert run(["train", "small", "--from", full["run"]["job_id"]]) == 0
    assert "learned from 1 run" in capsys.readouterr().out


def test_content_in_another_form_is_refused_with_a_sentence(tmp_path, home, capsys):
    path = written(
        tmp_path / "log.jsonl", [{"request": {"messages": [ASK]}, "response": {"choices": [3]}}]
    )
    assert run(["import", str(path), "--from", "openai"]) == 2
    assert "cannot be read as openai" in capsys.readouterr().err


def test_a_broken_line_is_named(tmp_path, home, capsys):
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps(call("a", [ASK], CALLING)) + "\n{oops\n")
    assert run(["import", str(path), "--from", "openai"]) == 2
    assert "Line 2 of" in capsys.readouterr().err
