"""Files of tasks alone, and equal tasks of a taskset."""

from __future__ import annotations

import json

import pytest

import hud.client
from hud.cli.main import run
from hud.environment.templates.task import Task
from hud.errors import UsageError
from hud.eval import Taskset

ENVIRONMENT = """
from hud import Environment

env = Environment("letters")


@env.template()
async def count(word: str):
    answer = yield f"How many letters has {word}?"
    yield float(answer == str(len(word)))


@env.template()
async def greet():
    answer = yield "Greet."
    yield 1.0


tasks = [count(word="red"), count(word="green")]
held = [count(word="violet")]
"""
FORMS = {
    "tasks": "from {env} import held as tasks",
    "list": "from {env} import count\n\nheld = [count(word='violet')]",
    "dict": "from {env} import count\n\nheld = {{'v': count(word='violet')}}",
    "taskset": "from hud.eval import Taskset\nfrom {env} import held as rows\n\nheld = Taskset('h', rows)",
    "single": "from {env} import count\n\ntask = count(word='violet')",
}
AGENT = "def agent(run):\n    return str(len(run.task.args.get('word', '')))\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    home = tmp_path / "home"
    for name in ("HUD_API_URL", "HUD_GATEWAY_URL", "HUD_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HUD_HOME", str(home))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.py").write_text(AGENT)
    yield tmp_path
    hud.client.disconnect(home)


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["local", "fork", "subprocess"])
@pytest.mark.parametrize("form", list(FORMS))
def test_the_environment_of_a_file_is_found_by_its_tasks(folder, capsys, runtime, form):
    name = f"letters_{form}_{runtime}"
    (folder / f"{name}.py").write_text(ENVIRONMENT)
    (folder / "held_out.py").write_text(FORMS[form].format(env=name) + "\n")
    arguments = ["eval", "held_out.py", "agent.py", "--all", "--runtime", runtime, "--json"]
    assert run(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["reward"], len(found["runs"])) == (1.0, 1)


@pytest.mark.slow
def test_a_file_with_a_list_named_tasks_has_no_others(folder, capsys):
    """`held` beside `tasks` is for a held-out file; it was played, and trained on, with the rest."""
    (folder / "letters_both.py").write_text(ENVIRONMENT)
    (folder / "held_out.py").write_text("from letters_both import held as tasks\n")
    words = [task.args["word"] for task in Taskset.from_file(folder / "letters_both.py")]
    assert words == ["red", "green"]
    assert [task.args["word"] for task in Taskset.from_file(folder / "held_out.py")] == ["violet"]
    assert run(["eval", "letters_both.py", "agent.py", "--all", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 2


@pytest.mark.slow
def test_without_such_a_list_all_tasks_of_a_file_count(folder):
    text = ENVIRONMENT.replace("tasks = [", "train = [").replace("held = [", "more = [")
    (folder / "letters_more.py").write_text(text + "\n\ndef tasks():\n    return train\n")
    assert len(Taskset.from_file(folder / "letters_more.py")) == 3


def tasks_of(source):
    module = {}
    exec(source, module)
    return module


def test_equal_tasks_have_distinct_slugs_and_labels():
    count = tasks_of(ENVIRONMENT)["count"]
    tasks = Taskset("letters", [count(word="red"), count(word="red"), count(word="red")])
    first, second, third = (task.slug for task in tasks)
    assert (second, third) == (f"{first}-2", f"{first}-3")
    assert [task.label for task in tasks] == [
        "count(word='red')",
        "count(word='red') (2)",
        "count(word='red') (3)",
    ]
    assert all(task.environment is not None for task in tasks)
    assert tasks[second] is tasks[1]


def test_the_same_task_may_stand_in_a_taskset_twice():
    greet = tasks_of(ENVIRONMENT)["greet"]()
    assert [task.slug for task in Taskset("greetings", [greet] * 3)] == [
        "greet",
        "greet-2",
        "greet-3",
    ]


def test_a_slug_that_is_taken_is_left_out():
    task = Task(env="letters", id="greet")
    named = Task(env="letters", id="greet", slug="greet-2")
    slugs = [one.slug for one in Taskset("greetings", [task, named, task])]
    assert slugs == ["greet", "greet-2", "greet-3"]


def test_rows_of_a_file_that_repeat_are_distinct(folder):
    row = {"env": "letters", "id": "count", "args": {"word": "red"}, "slug": "red"}
    (folder / "rows.jsonl").write_text("\n".join([json.dumps(row)] * 2))
    assert [task.slug for task in Taskset.from_file(folder / "rows.jsonl")] == ["red", "red-2"]


def test_one_chosen_slug_of_different_tasks_is_an_error():
    tasks = [
        Task(env="letters", id="count", args={"word": word}, slug="word")
        for word in ("red", "blue")
    ]
    with pytest.raises(UsageError, match="more than one task with the slug 'word'"):
        Taskset("letters", tasks)
