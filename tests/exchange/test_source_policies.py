"""Policies of sources: private texts are not stored, old runs are deleted, and training honours its flag."""

import asyncio
import json

import pytest
import sqlalchemy as sa
from tests.engine.tiny_policy import tiny_folder
from tests.exchange.test_message_logs import ASK, call, written
from tests.exchange.test_otlp_receiver import chat, request_of, runs, said, send

from hud import TrainingClient
from hud.cli.main import run
from hud.client import connect
from hud.errors import UsageError
from hud.exchange.redaction import Redaction
from hud.trace.recorded_time import now
from hud_platform.search.run_index import words_table
from hud_platform.store import source_policies
from hud_platform.store.tables import LOCAL_TEAM

KEY = "sk-ant-abcdefghijklmnop1234"

TOKEN = f"eyJ{'a' * 20}.eyJ{'b' * 20}.{'c' * 43}"


@pytest.mark.parametrize(
    ("rules", "text", "redacted"),
    [
        (["keys"], f"use {KEY} now", "use [keys] now"),
        (
            ["keys"],
            "Authorization: Bearer abcdefghijklmnopqrstuv==",
            "Authorization: Bearer [keys]",
        ),
        (["keys"], "AKIAABCDEFGHIJKLMNOP and ghp_" + "a" * 36, "[keys] and [keys]"),
        (
            ["keys"],
            "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----.",
            "[keys].",
        ),
        (
            ["keys"],
            "sk-learn is a library; task-management",
            "sk-learn is a library; task-management",
        ),
        (["keys"], f"token-{TOKEN}, please", "[keys], please"),
        (["mail"], "to ada.l+x@mail.example.org, please", "to [mail], please"),
        ([r"\d{3}-\d{4}", "mail"], "call 555-1234", "call [text]"),
    ],
)
def test_private_texts_are_replaced(rules, text, redacted):
    redaction = Redaction(rules)
    assert redaction.apply({"a": [text, 1, None]}) == {"a": [redacted, 1, None]}
    assert redaction.replaced == text.count("AKIA") + (text != redacted)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "text", ["-eyJ", "eyJ-", ".eyJaaaaaaaaaaaa", "a.", "a@a.", "@a-", "-----BEGIN ", "bearer a."]
)
def test_a_text_of_a_stranger_takes_time_in_proportion_to_its_length(text):
    """A pattern that reads the text again from each of its places takes an hour, in which the server answers nobody."""
    text = text * 50_000
    redaction = Redaction(["keys", "mail"])
    redaction.apply([text, f"a@{text}", f"{text}.eyJ{'a' * 20}.a"])


def test_a_rule_that_is_no_expression_is_refused():
    with pytest.raises(UsageError, match="no regular expression"):
        Redaction(["("])
    with pytest.raises(UsageError, match="at most 100"):
        Redaction(["a"] * 101)


def test_keys_are_redacted_before_anything_is_stored(tmp_path, imported, home, capsys):
    log = [
        call(
            "a",
            [{"role": "user", "content": f"My key is {KEY}."}],
            {"role": "assistant", "content": KEY},
        )
    ]
    (full,) = imported(written(tmp_path / "log.jsonl", log))
    assert "2 texts redacted" not in json.dumps(full)
    assert KEY not in json.dumps(full)
    assert "redacted" in capsys.readouterr().out
    for path in home.rglob("*"):
        if path.is_file():
            assert KEY.encode() not in path.read_bytes(), path


def test_spans_are_redacted_before_they_are_stored(home):
    assert run(["privacy", "otlp", "--redact", "mail"]) == 0
    send(request_of(chat(0, [said("user", "I am ada@example.org")], said("assistant", "Hi"))))
    assert "ada@example.org" not in json.dumps(runs())
    assert "[mail]" in json.dumps(runs())
    for path in home.rglob("hud.db*"):
        assert b"ada@example.org" not in path.read_bytes()


def test_runs_older_than_their_source_keeps_are_deleted(tmp_path, imported, capsys):
    answer = {"role": "assistant", "content": "3"}
    old, new = call("old", [ASK], answer), call("new", [ASK], answer, at=4_000_000_000)
    fulls = imported(written(tmp_path / "log.jsonl", [old, new]))
    first, second = (full["run"]["trace_id"] for full in fulls)
    compared = {"left_id": first, "right_id": second, "name": "better", "choice": "left"}
    compared |= {"shuffled": True, "rater": "ana", "created_at": now()}
    store = connect().embedded.parts.store
    table = source_policies.tables.comparisons
    with store.begin() as connection:
        connection.execute(sa.insert(table).values(id="c", team_id=LOCAL_TEAM, **compared))
    assert asyncio.run(connect().get("/v2/search", params={"text": "tea"}))["total"] == 2
    assert run(["privacy", "openai", "--keep-days", "30"]) == 0
    assert "30 days" in capsys.readouterr().out
    assert [row.foreign_id for row in store.rows(source_policies.tables.runs.select())] == [
        "openai:new"
    ]
    assert store.values(sa.select(table.c.id)) == []
    assert source_policies.remove_expired(store) == 0
    assert asyncio.run(connect().get("/v2/search", params={"text": "tea"}))["total"] == 1
    assert len(store.values(sa.select(words_table.c.rowid))) == 1


def test_a_source_that_may_not_be_trained_on_is_refused(tmp_path, imported, capsys):
    path = written(
        tmp_path / "log.jsonl", [call("a", [ASK], {"role": "assistant", "content": "3"})]
    )
    assert run(["privacy", "openai", "--no-train"]) == 0
    (full,) = imported(path)
    assert full["run"]["may_train"] is False
    asyncio.run(connect().post("/v2/models/add", {"source": str(tiny_folder()), "name": "small"}))
    with pytest.raises(UsageError, match="may not be trained on"):
        asyncio.run(TrainingClient("small").forward_backward([full["run"]["trace_id"]]))
    assert run(["train", "small", "--from", full["run"]["job_id"]]) == 2
    assert "may not be trained on" in capsys.readouterr().err
    assert run(["privacy", "openai", "--train"]) == 0
    (full,) = imported(path)
    assert full["run"]["may_train"] is None
