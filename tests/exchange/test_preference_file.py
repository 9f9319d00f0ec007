"""Files of preferences: the forms that TRL documents, and people's comparisons written and read again."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.dashboard.recorded import record
from tests.exchange.test_supervised_file import PRICE, model, written
from tests.platform.labels.test_labels import say, traces_of

from hud.cli.main import run
from hud.client import connect
from hud.train.supervised.examples import tokenized, usable_examples
from hud.train.supervised.preferences import pairs_of, peoples_pairs
from hud.train.supervised.recorded_runs import recorded_examples, runs_of_job
from hud_platform.labels.comparisons import Comparisons
from hud_platform.store.ingest import ingest
from hud_platform.store.tables import LOCAL_TEAM

__all__ = ["model"]

TASK = {"env": "shop", "id": "buy", "args": {}}
ASKED = {"role": "user", "content": "Name a fruit."}


def said(text):
    return {"role": "assistant", "content": text}


FORMS = {
    "explicit": {
        "prompt": [ASKED],
        "chosen": [said("A red apple.")],
        "rejected": [said("A chair.")],
    },
    "implicit": {
        "chosen": [ASKED, said("A red apple.")],
        "rejected": [ASKED, said("A chair.")],
    },
    "repeated": {
        "prompt": "Name a fruit.",
        "chosen": [ASKED, said("A red apple.")],
        "rejected": [ASKED, said("A chair.")],
        "messages": [ASKED, said("A red apple.")],
    },
    "texts": {"prompt": "Name a fruit.", "chosen": "A red apple.", "rejected": "A chair."},
}
TURNS = {
    "prompt": [ASKED, said("Which colour?"), {"role": "user", "content": "Red."}],
    "chosen": [said("An apple.")],
    "rejected": [said("A lime.")],
}


async def runs_of(job):
    client = connect()
    examples = await recorded_examples(client, await runs_of_job(client, job))
    row = await client.get("/v2/models/resolve", params={"model": "small"})
    return await tokenized(client, row["id"], usable_examples(examples, None), on_record=True)


def jobs():
    return {row["name"]: row["id"] for row in asyncio.run(connect().get("/v2/jobs"))["items"]}


def tokens_of(runs, pairs):
    """Return the tokens of pairs, as prompt and output of each turn, the better run first."""
    return [
        [
            [
                (sample.prompt_token_ids, sample.output_token_ids)
                for sample in runs.payloads[place].samples
            ]
            for place in (pair.better, pair.worse)
        ]
        for pair in pairs
    ]


def imported(tmp_path, *rows):
    assert run(["import", str(written(tmp_path, *rows)), "--job", "pairs"]) == 0
    runs = asyncio.run(runs_of(jobs()["pairs"]))
    return tokens_of(runs, pairs_of(runs))


def test_all_forms_of_a_pair_have_the_same_tokens(tmp_path, model):
    for row in FORMS.values():
        # Each is a pair by itself, although all have one prompt.
        first, *others = imported(tmp_path, *FORMS.values())
        assert len(others) == len(FORMS) - 1
        assert all(pair == first for pair in others), row
    (better,), (worse,) = first
    assert better[0] == worse[0]
    assert better[1] != worse[1]


def test_turns_of_the_prompt_are_context(tmp_path, model):
    (pair,) = imported(tmp_path, TURNS)
    (better,), (worse,) = pair
    assert better[0] == worse[0]


def test_a_chain_of_preferences_is_pairs_of_its_rows(tmp_path, model):
    """A run that is better than one and worse than another has no reward of its own."""
    chain = [
        {**FORMS["texts"], "chosen": chosen, "rejected": rejected}
        for chosen, rejected in (("A red apple.", "A lime."), ("A lime.", "A chair."))
    ]
    first, second = imported(tmp_path, *chain)
    assert first[1] == second[0]


def test_the_tools_of_a_row_are_in_its_prompts(tmp_path, model):
    with_tools, without = imported(tmp_path, {**TURNS, "tools": [PRICE]}, TURNS)
    assert len(with_tools[0][0][0]) > len(without[0][0][0])


@pytest.mark.parametrize(
    "row",
    [
        {"chosen": "Human: Hello", "rejected": "Human: Hello"},
        {"prompt": "Name a fruit.", "chosen": [], "rejected": "A chair."},
        {"chosen": [ASKED, said("An apple.")], "rejected": [ASKED]},
    ],
)
def test_a_row_without_a_prompt_or_an_answer_is_refused(tmp_path, home, capsys, row):
    assert run(["import", str(written(tmp_path, FORMS["texts"], row))]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "Row 2 of" in error
    assert "prompt, chosen and rejected" in error


def test_peoples_comparisons_written_to_a_file_are_the_pairs_that_are_trained_on(
    tmp_path, model, capsys, monkeypatch
):
    parts = connect().embedded.parts
    job = record(parts, "played", {"a": [0.0, 1.0, 0.5, 0.5]}, task=TASK)
    traces = traces_of(parts, job)
    for trace, text in zip(traces, ("apple", "chair", "lime", "pear"), strict=True):
        ingest(parts.store, say(trace, f"A {text}."), LOCAL_TEAM)
    comparisons = Comparisons(parts.store, LOCAL_TEAM)
    for better, worse in ((0, 1), (0, 2), (2, 1), (3, 0)):
        comparisons.add(traces[better], traces[worse], "left", "better", "ana", shuffled=True)
    monkeypatch.chdir(tmp_path)
    assert run(["label", "--dataset", "better", "--to", "comparisons"]) == 0
    assert "Wrote 4 rows to better-comparisons.jsonl." in capsys.readouterr().out
    lines = (tmp_path / "better-comparisons.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert {tuple(row) for row in rows} == {("prompt", "chosen", "rejected", "votes")}

    played = asyncio.run(runs_of(job))
    pairs = asyncio.run(peoples_pairs(connect(), played, "better"))
    command = "train small --from better-comparisons.jsonl --loss dpo --epochs 1 --batch 2 --json"
    assert run(command.split()) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["steps"] == 2
    read = asyncio.run(runs_of(jobs()["better-comparisons.jsonl"]))
    assert sorted(tokens_of(read, pairs_of(read))) == sorted(tokens_of(played, pairs))


def test_without_a_preference_the_cure_is_named(home, capsys):
    assert run(["label", "--dataset", "better", "--to", "comparisons"]) == 2
    assert "hud label --comparisons" in capsys.readouterr().err
