"""Session files of programs become runs: Claude Code, Codex."""

import hashlib
import json

from hud.trace import parse_trace
from hud.trace.ids import trace_id_of

SESSION = "11111111-2222-4333-8444-555555555555"


def written(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def sources_of(full):
    return [step.source for step in parse_trace(full["trace"]).steps]


def row(uuid, parent, kind, content, **fields):
    message = {"role": kind, "content": content}
    if kind == "assistant":
        message |= {"id": fields.pop("message_id", uuid), "model": "claude", "usage": {}}
    return {
        "type": kind,
        "uuid": uuid,
        "parentUuid": parent,
        "sessionId": SESSION,
        "isSidechain": False,
        "cwd": "/home/me/shop",
        "timestamp": f"2026-11-0{len(uuid)}T10:00:00Z",
        "message": message,
        **fields,
    }


def use(name, identifier):
    return {"type": "tool_use", "id": identifier, "name": name, "input": {"a": 1}}


def result(identifier, text):
    return {"type": "tool_result", "tool_use_id": identifier, "content": text}


def test_an_older_session_is_the_path_to_each_of_its_answers(tmp_path, imported):
    rows = [
        {"type": "summary", "summary": "A shop", "leafUuid": "x"},
        row("u", None, "user", "Mend it."),
        # A message's blocks are rows; its calls are answered in parallel.
        row("a1", "u", "assistant", [{"type": "thinking", "thinking": "hm"}], message_id="m1"),
        row("a2", "a1", "assistant", [use("read", "c1")], message_id="m1"),
        row("a3", "a2", "assistant", [use("list", "c2")], message_id="m1"),
        row("r1", "a2", "user", [result("c1", "text")]),
        row("r2", "a3", "user", [result("c2", "files")]),
        row("b", "r2", "assistant", [{"type": "text", "text": "Done."}]),
        # A second way on, from the first message.
        row("u2", "b", "user", "Again."),
        row("c", "u2", "assistant", [{"type": "text", "text": "Again done."}]),
        row("u3", "b", "user", "Rather not."),
        row("d", "u3", "assistant", [{"type": "text", "text": "Fine."}]),
        # A subagent in the same file.
        row("s", None, "user", "Search.", isSidechain=True),
        row("t", "s", "assistant", [{"type": "text", "text": "None."}], isSidechain=True),
    ]
    runs = imported(written(tmp_path / "session.jsonl", rows))
    assert [full["run"]["foreign_id"] for full in runs] == [
        SESSION,
        f"{SESSION}:d",
        f"{SESSION}:t",
    ]
    main, other, agent = runs
    assert main["run"]["trace_id"] == SESSION.replace("-", "")
    assert sources_of(main) == ["user", "agent", "tool", "tool", "agent", "user", "agent"]
    turn = parse_trace(main["trace"]).steps[1]
    assert turn.reasoning == "hm"
    assert [call.name for call in turn.tool_calls] == ["read", "list"]
    results = [step.result.text for step in parse_trace(main["trace"]).steps[2:4]]
    assert results == ["text", "files"]
    assert (main["run"]["slug"], main["run"]["content"]) == ("shop", "Again done.")
    assert other["run"]["content"] == "Fine."
    assert agent["run"]["extra"]["parent_trace_id"] == trace_id_of(SESSION)
    assert agent["run"]["extra"]["subagent"] == "sidechain"


def digest(message):
    packed = json.dumps(message, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(packed.encode()).hexdigest()


def test_a_newer_session_has_each_request_as_it_was_sent(tmp_path, imported):
    first = {"role": "user", "content": [{"type": "text", "text": "<reminder> Mend it."}]}
    turn = [{"type": "thinking", "thinking": "hm", "signature": ""}, use("read", "c1")]
    answered = [result("c1", "é")]
    shape = {"system": [{"type": "text", "text": "You help."}], "tools": [{"name": "read"}]}
    common = {"sessionId": SESSION, "timestamp": "2026-11-01T10:00:00Z"}

    def request(identifier, **fields):
        return {
            **{"type": "api-request", "id": identifier, "shapeHash": "s", "params": {}},
            **common,
            **fields,
        }

    rows = [
        row("u", None, "user", "Mend it."),
        {"type": "api-request-shape", "shapeHash": "s", "shape": shape, **common},
        {"type": "api-request-blob", "hash": digest(first), "message": first, **common},
        request("q1", keep=0, tail=[digest(first)]),
        row("a", "u", "assistant", turn[:1], message_id="m1", requestRef="q1"),
        row("a2", "a", "assistant", turn[1:], message_id="m1", requestRef="q1"),
        row("r", "a2", "user", answered),
        # Messages of the conversation are named by their hash, and are no blobs.
        request(
            "q2",
            base="q1",
            keep=1,
            tail=[
                digest({"role": "assistant", "content": turn}),
                digest({"role": "user", "content": answered}),
            ],
        ),
        row("b", "r", "assistant", [{"type": "text", "text": "Done."}], requestRef="q2"),
    ]
    written(
        tmp_path / SESSION / "subagents" / "agent-7.jsonl",
        [
            row("s", None, "user", "Search.", isSidechain=True, agentId="7"),
            row(
                "t",
                "s",
                "assistant",
                [{"type": "text", "text": "None."}],
                isSidechain=True,
                agentId="7",
            ),
        ],
    )
    main, agent = imported(written(tmp_path / f"{SESSION}.jsonl", rows))
    assert sources_of(main) == ["user", "agent", "tool", "agent"]
    prompt = parse_trace(main["trace"]).steps[0]
    assert [(message.role, message.text) for message in prompt.messages] == [
        ("system", "You help."),
        ("user", "<reminder> Mend it."),
    ]
    assert main["run"]["extra"]["tools"] == ["read"]
    assert agent["run"]["extra"] == {"parent_trace_id": trace_id_of(SESSION), "subagent": "7"}


def test_a_failed_request_is_a_failure_of_infrastructure(tmp_path, imported):
    failed = row("a", "u", "assistant", [{"type": "text", "text": "API Error: 400"}])
    failed["message"]["model"] = "<synthetic>"
    (full,) = imported(written(tmp_path / "s.jsonl", [row("u", None, "user", "Go."), failed]))
    assert (full["run"]["failure_kind"], full["run"]["error"]) == (
        "infrastructure",
        "API Error: 400",
    )


def codex(kind, **payload):
    return {"timestamp": "2026-11-01T10:00:00.5Z", "type": kind, "payload": payload}


def item(kind, **fields):
    return codex("response_item", type=kind, **fields)


def test_a_rollout_of_codex_is_a_run_and_a_compaction_begins_another(tmp_path, imported):
    usage = {"input_tokens": 10, "output_tokens": 2, "cached_input_tokens": 4}
    said = {"type": "output_text", "text": "Done."}
    rows = [
        codex("session_meta", id=SESSION, cwd="/home/me/shop", base_instructions={"text": "Code."}),
        item("message", role="user", content=[{"type": "input_text", "text": "Mend it."}]),
        codex("turn_context", model="gpt-x"),
        item("reasoning", summary=[{"type": "summary_text", "text": "hm"}], content=None),
        item("function_call", name="exec_command", arguments='{"cmd":"ls"}', call_id="c1"),
        codex("event_msg", type="token_count", info={"last_token_usage": usage}),
        item("function_call_output", call_id="c1", output="total.py"),
        item("message", role="assistant", content=[said]),
        codex("compacted", message="We mended it.", replacement_history=None),
        item("message", role="user", content=[{"type": "input_text", "text": "More."}]),
        item("message", role="assistant", content=[{**said, "text": "Nothing more."}]),
    ]
    main, later = imported(written(tmp_path / "rollout-1.jsonl", rows))
    assert sources_of(main) == ["user", "agent", "tool", "agent"]
    prompt, turn, *_ = parse_trace(main["trace"]).steps
    assert [message.role for message in prompt.messages] == ["system", "user"]
    assert (turn.reasoning, turn.tool_calls[0].arguments) == ("hm", {"cmd": "ls"})
    assert (main["run"]["model"], main["run"]["prompt_tokens"]) == ("gpt-x", 10)
    assert sources_of(later) == ["user", "agent"]
    assert later["run"]["extra"]["parent_trace_id"] == trace_id_of(SESSION)
    assert imported(tmp_path) == [main, later], "a folder is read, too, and imported again"
