"""Which slugs of recorded runs name tasks that a model was trained on."""

import orjson
import pytest

from hud.client import connect, disconnect
from hud.trace import new_id
from hud.trace.recording.journal import encode_event
from hud_platform.store import tables
from hud_platform.store.ingest import ingest
from hud_platform.store.trained_tasks import trained_on


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    yield connect().embedded.parts.store
    disconnect(tmp_path)


def put_job(store, purpose, runs):
    """Record a job of runs: pairs of slug and task argument or task; returns their ids in the order of the runs."""
    job = new_id()
    opening = {"name": "j", "purpose": purpose, "group_size": 1, "taskset_id": None, "at": 1}
    opening |= {"pid": None, "process_started": None, "host": "here"}
    events = [encode_event(b"J", job, 0, orjson.dumps(opening))]
    ids = sorted(new_id() for _ in runs)
    for trace_id, (slug, word) in zip(ids, runs, strict=True):
        task = word
        if isinstance(word, str):
            task = {"env": "letters", "id": "say", "args": {"word": word}}
        row = {"job_id": job, "group_id": None, "attempt": 0, "slug": slug, "task": task}
        ended = {**row, "model": "m", "status": "completed", "reward": 1.0, "step_count": 0}
        events.append(encode_event(b"R", trace_id, 0, orjson.dumps(row)))
        events.append(encode_event(b"E", trace_id, 0, orjson.dumps(ended)))
    assert ingest(store, b"".join(events), tables.LOCAL_TEAM).damaged == []
    return ids


def test_a_task_is_trained_on_whatever_its_slug(store):
    put_job(store, "training", [("red", "red")])
    played = put_job(store, "evaluation", [("other", "red"), ("blue", "blue")])
    assert trained_on(store, tables.LOCAL_TEAM, ["m"], played) == {"other"}


def test_no_run_of_another_task_hides_a_trained_one_under_its_slug(store):
    put_job(store, "training", [("red", "red")])
    played = put_job(store, "evaluation", [("mixed", "blue"), ("mixed", "red")])
    assert trained_on(store, tables.LOCAL_TEAM, ["m"], played) == {"mixed"}


def test_no_slug_of_several_tasks_hides_one_of_them_in_training(store):
    put_job(store, "training", [("mixed", "blue"), ("mixed", "red")])
    played = put_job(store, "evaluation", [("red", "red")])
    assert trained_on(store, tables.LOCAL_TEAM, ["m"], played) == {"red"}


def test_a_repeated_end_of_a_run_changes_neither_its_task_nor_its_job(store):
    (trained,) = put_job(store, "training", [("red", "red")])
    elsewhere = {"env": "letters", "id": "say", "args": {"word": "green"}}
    row = {"job_id": new_id(), "group_id": None, "attempt": 0, "slug": "green", "task": elsewhere}
    again = {**row, "model": "m", "status": "completed", "reward": 0.5, "step_count": 0}
    ingest(store, encode_event(b"E", trained, 0, orjson.dumps(again)), tables.LOCAL_TEAM)
    played = put_job(store, "evaluation", [("other", "red")])
    assert trained_on(store, tables.LOCAL_TEAM, ["m"], played) == {"other"}


def put_prompts(store, ids, prompts):
    """Record the first messages of runs."""
    events = []
    for trace_id, prompt in zip(ids, prompts, strict=True):
        step = {"source": "user", "messages": [{"role": "user", "content": prompt}]}
        events.append(encode_event(b"S", trace_id, 1, orjson.dumps(step)))
    assert ingest(store, b"".join(events), tables.LOCAL_TEAM).damaged == []


def of_environment(name, word):
    return {"env": name, "id": "say", "args": {"word": word}}


def test_a_task_in_a_renamed_environment_is_the_same_where_its_prompt_is(store):
    ids = put_job(store, "training", [("red", "red"), ("blue", "blue")])
    put_prompts(store, ids, ["Say red.", "Say blue."])
    copies = [
        ("copy", of_environment("copied", "red")),
        ("other", of_environment("spells", "blue")),
    ]
    played = put_job(store, "evaluation", copies)
    put_prompts(store, played, [" say RED", "Spell blue."])
    assert trained_on(store, tables.LOCAL_TEAM, ["m"], played) == {"copy"}


def form(*equal_args, **args):
    """A recorded task with these arguments, and other forms of them."""
    return {"env": "letters", "id": "say", "args": args, "equal_args": list(equal_args)}


@pytest.mark.parametrize(
    ("trained", "played"),
    [
        (form(word="red"), form({"word": "red"}, word="red", loud=False)),
        (form({"word": "red", "loud": False}, word="red"), form(word="red", loud=False)),
        (form(word="red", share=2), form(share=2.0, word="red")),
        (form(word="\u00e9"), form(word="e\u0301")),
    ],
)
def test_no_form_of_arguments_hides_a_trained_task(store, trained, played):
    put_job(store, "training", [("red", trained)])
    runs = put_job(store, "evaluation", [("other", played), ("blue", "blue")])
    assert trained_on(store, tables.LOCAL_TEAM, ["m"], runs) == {"other"}


@pytest.mark.parametrize("forms", ["red", 3, [3, None, "red"], {"word": "red"}])
def test_forms_that_are_none_are_ignored(store, forms):
    put_job(store, "training", [("red", {**form(word="red"), "equal_args": forms})])
    runs = put_job(store, "evaluation", [("other", "red"), ("blue", "blue")])
    assert trained_on(store, tables.LOCAL_TEAM, ["m"], runs) == {"other"}
