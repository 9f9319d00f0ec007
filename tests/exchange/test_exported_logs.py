"""Exports of observability systems, and trajectories of ATIF, become runs."""

import json

from tests.exchange.test_trajectory_import import hud_command

from hud.trace import parse_trace


def written(path, value):
    path.write_text(json.dumps(value))
    return path


def test_a_trace_of_langsmith_is_a_run_with_its_feedback(tmp_path, imported):
    human = {"lc": 1, "id": ["langchain", "HumanMessage"], "kwargs": {"content": "Price?"}}
    call = {"name": "price", "args": {"item": "tea"}, "id": "c1"}
    asked = {"type": "ai", "content": "", "tool_calls": [call]}
    answered = {"type": "tool", "content": "3", "tool_call_id": "c1", "name": "price"}
    model = {"invocation_params": {"model": "gpt"}}
    rows = [
        {
            **{"id": "root", "trace_id": "t1", "name": "agent", "run_type": "chain", "inputs": {}},
            "feedback_stats": {"correct": {"n": 1, "avg": 1.0}, "brief": {"avg": 0.5}},
        },
        {
            **{"id": "l2", "trace_id": "t1", "parent_run_id": "root", "run_type": "llm"},
            "inputs": {"messages": [[human, asked, answered]]},
            "outputs": {"generations": [[{"message": {"type": "ai", "content": "It is 3."}}]]},
            **{"start_time": "2026-11-01T10:00:02", "extra": model, "prompt_tokens": 7},
        },
        {
            **{"id": "l1", "trace_id": "t1", "parent_run_id": "root", "run_type": "llm"},
            "inputs": {"messages": [[human]]},
            "outputs": {"generations": [[{"message": asked}]]},
            **{"start_time": "2026-11-01T10:00:01", "extra": model},
        },
    ]
    path = tmp_path / "runs.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (full,) = imported(path)
    steps = parse_trace(full["trace"]).steps
    assert [step.source for step in steps] == ["user", "agent", "tool", "agent"]
    assert steps[1].tool_calls[0].arguments == {"item": "tea"}
    row = full["run"]
    assert (row["source"], row["slug"], row["model"]) == ("langsmith", "agent", "gpt")
    assert (row["reward"], row["prompt_tokens"]) == (0.75, 7)
    assert [part["name"] for part in row["grade"]["subscores"]] == ["correct", "brief"]


def test_a_trace_of_langfuse_is_a_run_with_its_scores(tmp_path, imported):
    trace = {
        "id": "t9",
        "name": "support",
        "sessionId": "s",
        "scores": [{"name": "reward", "value": 0.25}, {"name": "tone", "value": 1}],
        "observations": [
            {"id": "o0", "type": "SPAN", "name": "retrieval", "input": "x"},
            {
                **{"id": "o1", "type": "GENERATION", "model": "gpt"},
                "input": '[{"role": "user", "content": "Hello?"}]',
                "output": {"role": "assistant", "content": "Hi."},
                "startTime": "2026-11-01T10:00:01Z",
                "usageDetails": {"input": 3, "output": 2, "total": 5},
            },
        ],
    }
    (full,) = imported(written(tmp_path / "traces.json", [trace]))
    row = full["run"]
    assert (row["foreign_id"], row["slug"], row["reward"]) == ("langfuse:t9", "support", 0.25)
    assert (row["content"], row["prompt_tokens"], row["completion_tokens"]) == ("Hi.", 3, 2)
    assert row["extra"] == {"sessionId": "s"}


def test_our_own_trajectories_of_atif_come_back_with_their_tokens(tmp_path, imported, capsys):
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{"}}
    messages = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "What is it?"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "a door"},
        {"role": "assistant", "content": "A door."},
    ]
    (first,) = imported(written(tmp_path / "chat.json", messages), "--job", "chats")
    job = first["run"]["job_id"]
    hud_command("export", job, "--to", "atif", "-o", tmp_path / "atif")
    (document,) = (tmp_path / "atif").rglob("trajectory.json")
    trajectory = json.loads(document.read_text())
    trajectory["session_id"] = "from-elsewhere"
    trajectory["extra"]["reward"] = 0.5
    trajectory["steps"][-1]["metrics"] = {
        **{"prompt_tokens": 3, "prompt_token_ids": [1, 2, 3]},
        **{"completion_token_ids": [4, 5], "logprobs": [-0.5, -0.25]},
    }
    document.write_text(json.dumps(trajectory))
    fulls = imported(tmp_path / "atif")
    (again,) = [full for full in fulls if full["run"]["source"] == "atif"]
    one, two = (parse_trace(full["trace"]).steps for full in (first, again))
    fields = ("source", "messages", "content", "tool_calls", "call", "result")
    for ours, theirs in zip(one, two, strict=True):
        assert [getattr(ours, name, None) for name in fields] == [
            getattr(theirs, name, None) for name in fields
        ]
    assert two[-1].sample.output_token_ids == [4, 5]
    assert (again["run"]["reward"], again["run"]["content"]) == (0.5, "A door.")
    assert "without token ids" not in capsys.readouterr().out.splitlines()[-2]
