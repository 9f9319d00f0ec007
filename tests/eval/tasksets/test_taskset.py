"""Tasksets: files in and out, and what they say about a bad one."""

from __future__ import annotations

import json

import pytest

from hud.environment import Environment
from hud.errors import NotFoundError, UsageError
from hud.eval import NullRecorder, Taskset

ENVIRONMENT = '''
from hud.environment import Environment

env = Environment("letters")

@env.template()
async def count(word: str = "berry"):
    """Count letters."""
    answer = yield f"How many r in {word}?"
    yield float(answer == str(word.count("r")))

@env.template()
async def needs(word: str):
    """Needs an argument."""
    yield word
    yield 1.0
'''


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "env.py").write_text(ENVIRONMENT)
    return tmp_path


def write(folder, name, text):
    path = folder / name
    path.write_text(text)
    return path


async def right(run):
    run.trace.content = "2"


@pytest.mark.slow
def test_python_files_give_the_tasks_at_their_top_level_in_order(folder):
    path = write(
        folder,
        "tasks.py",
        ENVIRONMENT
        + "first = count(word='a')\npair = [count(word='b'), first]\nmore = {'c': count(word='c')}\n"
        "_hidden = count(word='hidden')\n",
    )
    taskset = Taskset.from_file(path)
    assert taskset.name == "tasks"
    assert [task.args["word"] for task in taskset] == ["a", "b", "c"]
    assert taskset.environment_names() == ["letters"]
    assert all(task.environment.name == "letters" for task in taskset)


@pytest.mark.slow
def test_a_file_without_tasks_gives_one_of_each_template_that_needs_nothing(folder):
    assert [task.slug for task in Taskset.from_file(folder / "env.py")] == ["count"]
    assert [task.slug for task in Taskset.from_file(folder)] == ["count"]


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".json", ".jsonl"])
def test_rows_round_trip_and_are_bound_to_the_environment_beside_them(folder, ending):
    rows = Taskset.from_file(
        write(folder, "made.py", ENVIRONMENT + "tasks = [count(word=w) for w in 'abc']\n")
    )
    path = folder / f"rows{ending}"
    rows.to_file(path)
    loaded = Taskset.from_file(path)
    assert [task.model_dump() for task in loaded] == [task.model_dump() for task in rows]
    assert all(task.environment is not None for task in loaded)


def test_rows_of_an_export_are_understood(tmp_path):
    row = {"env": "far", "scenario": "s", "name": "slug", "args": {"a": 1}, "columns": None}
    path = write(tmp_path, "export.json", json.dumps({"name": "x", "tasks": [row]}))
    (task,) = Taskset.from_file(path)
    assert (task.env, task.id, task.slug) == ("far", "s", "slug")
    assert task.environment is None


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("bad.py", "x = 1\ny = = 2\n", r"bad\.py:2: invalid syntax"),
        ("boom.py", "x = 1\n\n1 / 0\n", r"boom\.py:3: .*ZeroDivisionError"),
        ("none.py", "x = 1\n", "defines no tasks"),
        ("bad.json", '[\n{"env": "a",\n}]', r"bad\.json:2: .*not valid JSON"),
        ("bad.jsonl", '{"env": "a", "id": "b"}\n\n{"env"\n', r"bad\.jsonl:3: .*not valid JSON"),
        ("row.jsonl", '{"env": "a", "id": "b"}\n{"env": "a"}\n', r"row\.jsonl:2: id: "),
        ("row.json", '[{"env": "a", "id": "b", "oops": 1}]', r"row\.json: task 1: oops: "),
        ("text.json", '"hello"', "expected an array"),
        ("tasks.csv", "a,b", r"\.py, \.json and \.jsonl"),
    ],
)
def test_a_file_that_cannot_be_used_says_where(tmp_path, name, text, message):
    with pytest.raises(UsageError, match=message):
        Taskset.from_file(write(tmp_path, name, text))


def test_a_missing_file_and_an_empty_folder(tmp_path):
    with pytest.raises(NotFoundError, match=r"nothing\.py"):
        Taskset.from_file(tmp_path / "nothing.py")
    with pytest.raises(UsageError, match="holds none of"):
        Taskset.from_file(tmp_path)


def make(words, slug=None):
    env = Environment("letters")

    @env.template()
    async def count(word: str):
        """Count letters."""
        answer = yield f"How many r in {word}?"
        yield float(answer == str(word.count("r")))

    tasks = []
    for word in words:
        task = count(word=word)
        task.slug = slug or word
        tasks.append(task)
    return Taskset("words", tasks)


def test_indexing_filtering_and_excluding_keep_the_order():
    taskset = make(["one", "two", "three", "four"])
    assert taskset["two"] is taskset[1]
    assert "two" in taskset
    assert len(taskset) == 4
    assert [task.slug for task in taskset.filter(["four", "one"])] == ["one", "four"]
    assert [slug for slug, _ in taskset.exclude(["two"]).items()] == ["one", "three", "four"]
    with pytest.raises(NotFoundError, match="did you mean 'three'"):
        taskset["thre"]
    with pytest.raises(NotFoundError):
        taskset.filter(["zzz"])


def test_duplicate_slugs_are_refused():
    with pytest.raises(UsageError, match="more than one task with the slug 'a'"):
        make(["a", "b", "c"], slug="a")


async def test_a_task_and_a_taskset_run_to_a_job():
    taskset = make(["berry", "pear"])
    job = await taskset.run(right, group=2, recorder=NullRecorder())
    assert job.name == "words"
    assert [run.slug for run in job.runs] == ["berry", "berry", "pear", "pear"]
    assert job.reward == 0.5
    assert job.results.keys() == {"berry", "pear"}
    assert job.errors == []
    assert job.statistics.no_signal == ["berry", "pear"]
    job = await taskset["pear"].run(right, recorder=NullRecorder())
    assert (len(job.runs), job.reward) == (1, 0.0)


@pytest.mark.slow
def test_a_slice_or_a_list_of_positions_and_slugs_is_a_taskset(folder):
    path = write(
        folder, "tasks.py", ENVIRONMENT + "tasks = {one: count(word=one) for one in 'abcdef'}\n"
    )
    taskset = Taskset.from_file(path)
    words = [task.args["word"] for task in taskset]
    part = taskset[:4]
    assert isinstance(part, Taskset)
    assert (part.name, [task.args["word"] for task in part]) == ("tasks", words[:4])
    assert [task.args["word"] for task in taskset[::-2]] == words[::-2]
    slug = taskset[1].slug
    assert [task.args["word"] for task in taskset[[3, slug]]] == [words[3], words[1]]
    assert len(taskset[10:]) == 0
    with pytest.raises(UsageError, match="more than one task"):
        taskset[[0, 0]]
    with pytest.raises(IndexError):
        taskset[[9]]


@pytest.mark.slow
def test_a_taskset_contains_its_tasks_and_their_slugs(folder):
    taskset = Taskset.from_file(write(folder, "tasks.jsonl", ROW))
    task = taskset[0]
    assert task in taskset
    assert task.slug in taskset
    assert task.model_copy(update={"args": {"word": "other"}}) not in taskset
    assert "none" not in taskset
    assert 0 not in taskset


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tasks.jsonl", "tasks.json"])
def test_a_byte_order_mark_is_no_part_of_a_file(folder, name):
    (folder / name).write_bytes(
        ("\ufeff" + (ROW if name == "tasks.jsonl" else f"[{ROW}]")).encode()
    )
    assert len(Taskset.from_file(folder / name)) == 1


ROW = json.dumps({"env": "letters", "id": "count", "args": {"word": "berry"}})
