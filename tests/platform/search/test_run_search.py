"""Search by field, over everything that a run does, on either store."""

import asyncio
import threading

import orjson
import pytest

from hud.errors import UsageError
from hud.trace import new_id
from hud.trace.recording.journal import encode_event
from hud_platform.search import run_index
from hud_platform.search.query import MOST_TERMS, Term, parse
from hud_platform.search.run_index import RunIndexing, index_some
from hud_platform.search.run_search import search
from hud_platform.store import Store
from hud_platform.store.ingest import ingest
from hud_platform.store.outcomes import add_outcome
from hud_platform.store.tables import LOCAL_TEAM

AT = 1_760_000_000_000_000


@pytest.fixture
def store(tmp_path):
    opened = Store.open(tmp_path)
    yield opened
    opened.close()


def line(kind, identifier, payload, step=0):
    return encode_event(kind, identifier, step, orjson.dumps(payload))


def user(text):
    return {"source": "user", "messages": [{"role": "user", "content": text}]}


def turn(content=None, tool=None, arguments=None, **more):
    calls = [] if tool is None else [{"id": "c1", "name": tool, "arguments": arguments or {}}]
    return {"source": "agent", "content": content, "tool_calls": calls, **more}


def result(tool, text, *, failed=False):
    content = [{"type": "text", "text": text}]
    return {
        "source": "tool",
        "call": {"id": "c1", "name": tool, "arguments": {}},
        "result": {"content": content, "isError": failed},
    }


def record(store, *steps, job="evening", env="shop", model="tiny", age=0, trace=None, **ended):
    """Record a finished run and return its trace id."""
    trace, job_id = trace or new_id(), new_id()
    begun = {"name": job, "taskset_id": None, "group_size": 1, "pid": None,
             "process_started": None, "host": "h", "at": AT}  # fmt: skip
    known = {"job_id": job_id, "group_id": new_id(), "attempt": 0, "slug": "buy-1", "model": model,
             "task": {"env": env, "id": "buy", "args": {}}, "started_at": AT - age}  # fmt: skip
    end = {"status": "completed", "reward": 1.0, "turns": 2, "completion_tokens": 100, **known}
    lines = [line(b"J", job_id, begun), line(b"R", trace, known)]
    lines += [
        line(b"S", trace, {"step_id": number, **step}, number)
        for number, step in enumerate(steps, 1)
    ]
    lines.append(line(b"E", trace, {**end, "ended_at": AT + 30_000_000, **ended}))
    assert not ingest(store, b"".join(lines), LOCAL_TEAM).damaged
    return trace


def traces(store, text):
    return [item["trace_id"] for item in search(store, LOCAL_TEAM, text, 20, 0).items]


@pytest.fixture
def two_runs(store):
    """A run that failed at a query, and one that bought something."""
    failed = record(
        store,
        user("Find the cheapest kettle"),
        turn(tool="sql_query", arguments={"statement": "select price from products"},
             reasoning="A query is enough."),
        result("sql_query", "Traceback\nKeyError: 'price'", failed=True),
        turn("There is no kettle."),
        reward=0.0, age=5, job="evening", model="tiny-grpo", cost_usd=0.02,
    )  # fmt: skip
    bought = record(
        store,
        user("Buy a kettle"),
        turn(tool="click", arguments={"button": "order"}),
        result("click", "ordered: KeyError is the name of a shop"),
        turn("I bought it from the sql shop."),
        reward=1.0, job="morning", env="web", model="claude", turns=12,
    )  # fmt: skip
    return failed, bought


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("kettle", "both"),
        ("tool:sql", "failed"),
        ("tool:sql error:KeyError", "failed"),
        ('error:"KeyError price"', "failed"),
        ('error:"price KeyError"', "none"),
        ("KeyError", "both"),
        ("error:KeyError", "failed"),
        ("result:keyerror", "both"),
        ("answer:sql", "bought"),
        ("argument:products", "failed"),
        ("argument:button", "bought"),
        ("thought:enough", "failed"),
        ("prompt:cheapest", "failed"),
        ("answer:cheapest", "none"),
        ("kettle -cheapest", "bought"),
        ("kettle -tool:sql", "bought"),
        ("-kettle", "none"),
        ("-cheapest", "bought"),
        ('kettle -"a kettle"', "failed"),
        ("reward:<0.5", "failed"),
        ("reward:>=0.5", "bought"),
        ("reward:0.5..2", "bought"),
        ("reward:1", "bought"),
        ("-reward:<0.5", "bought"),
        ("kettle reward:<0.5 env:shop", "failed"),
        ("turns:>10", "bought"),
        ("cost:>0.01", "failed"),
        ("seconds:>=30", "both"),
        ("env:web", "bought"),
        ("model:tiny-grpo", "failed"),
        ("model:tiny", "failed"),
        ("job:morning", "bought"),
        ("status:completed", "both"),
        ("status:complete", "none"),
        ("task:buy-1", "both"),
        ("failure:agent", "none"),
        ("source:recorded", "both"),
        ("source:otlp", "none"),
        ("TOOL:SQL", "failed"),
    ],
)
def test_runs_are_found_by_field(store, two_runs, text, matches):
    failed, bought = two_runs
    expected = {"both": [bought, failed], "failed": [failed], "bought": [bought], "none": []}
    assert traces(store, text) == expected[matches]


def test_a_run_is_found_by_its_job_and_by_what_made_it_fail(store):
    trace = record(
        store, user("Go"), status="error", failure_kind="environment", error="Timeout of the page"
    )
    (hit,) = search(store, LOCAL_TEAM, "failure:environment error:timeout", 20, 0).items
    assert hit["trace_id"] == trace
    assert hit["snippet"]["where"] == "error"
    assert traces(store, f"job:{hit['job_id'][:8]}") == [trace]


def test_a_snippet_shows_the_field_that_matches(store, two_runs):
    failed, _ = two_runs
    (hit,) = search(store, LOCAL_TEAM, "tool:sql error:KeyError", 20, 0).items
    assert (hit["trace_id"], hit["snippet"]["where"]) == (failed, "error")
    assert [part["text"] for part in hit["snippet"]["parts"] if part["match"]] == ["KeyError"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('tool:"sql', "The quotation mark at character 6 is not closed."),
        ("toll:sql", "There is no field 'toll'; there are prompt, answer"),
        ("toll:sql", 'To search for the text, quote it: "toll:sql"'),
        ("reward:high", "reward:high is no condition on a number; write reward:<0.5"),
        ("reward:<", "reward:< is no condition on a number"),
        ("reward:1.2.3", "is no condition on a number"),
        ("tool:***", "The field 'tool' needs a value, as in tool:word."),
        ("word " * 17, f"A search has at most {MOST_TERMS} terms; this one has 17."),
    ],
)
def test_a_malformed_query_is_refused_with_its_cure(text, sentence):
    with pytest.raises(UsageError) as refused:
        parse(text)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    "text", ["http://example.com/a", "12:30", "KeyError: 'price'", "a - b", "C:// x", "***", "''"]
)
def test_pasted_text_is_words(text):
    assert all(term.field is None for term in parse(text).terms)


def test_words_of_a_query_are_bounded():
    assert len(parse("a" * 5_000).terms[0].words) == MOST_TERMS
    assert parse('tool:"Read File"').terms == (Term(("read", "file"), "tool", prefix=False),)
    assert not parse("   ")


def test_a_long_word_is_found_by_its_beginning(store):
    trace = record(store, user("x" * 200 + " end"))
    assert traces(store, "x" * 100) == [trace]
    assert traces(store, "x" * 201) == []


def test_words_behind_the_phrases_of_a_long_run_are_found_each_by_itself(store):
    words = " ".join(f"n{number}" for number in range(6_000))
    trace = record(store, user("Go"), result("read", f"{words} last words"))
    assert traces(store, "n5999") == [trace]
    assert traces(store, "result:last") == [trace]
    assert traces(store, '"n10 n11"') == [trace]


def test_a_reward_that_an_outcome_changes_is_found(store):
    trace = record(store, user("Find the kettle"), reward=None)
    assert traces(store, "reward:1") == []
    add_outcome(store, LOCAL_TEAM, trace, "reward", 1.0)
    assert traces(store, "reward:1") == [trace]


async def test_a_server_indexes_while_runs_are_recorded(store):
    stopping = asyncio.Event()
    work = asyncio.create_task(RunIndexing(store, stopping).work())
    trace = await asyncio.to_thread(record, store, user("Find the kettle"))
    for _ in range(200):
        if search(store, LOCAL_TEAM, "kettle", 20, 0).items:
            break
        await asyncio.sleep(0.05)
    stopping.set()
    await work
    assert traces(store, "kettle") == [trace]


def test_a_run_that_changes_while_it_is_indexed_is_indexed_again(store, monkeypatch):
    trace = record(store, user("Find the kettle"))
    words = run_index.tagged_words

    def changed_meanwhile(texts):
        monkeypatch.setattr(run_index, "tagged_words", words)
        record(store, user("Find the kettle"), turn("It is red."), trace=trace)
        return words(texts)

    monkeypatch.setattr(run_index, "tagged_words", changed_meanwhile)
    assert index_some(store) == 1
    assert traces(store, "red") == [trace]


def test_two_servers_index_each_run_once(store):
    expected = {record(store, user(f"kettle {number}")) for number in range(60)}
    failures = []

    def work():
        try:
            while index_some(store):
                pass
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    hits = search(store, LOCAL_TEAM, "kettle", 100, 0)
    assert {item["trace_id"] for item in hits.items} == expected
    assert hits.total == 60
