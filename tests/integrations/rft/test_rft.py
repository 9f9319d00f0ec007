"""Exported graders are valid for OpenAI's client, as released, and grade as ours do: `scripts/setup-integration rft`."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("openai", reason="scripts/setup-integration rft")

from openai.types.fine_tuning import ReinforcementMethodParam
from pydantic import TypeAdapter, ValidationError

from hud import Taskset
from hud.agents import ScriptedAgent
from hud.errors import UsageError
from hud_integrations.rft import export_tasks, python_grader
from hud_integrations.rft.grading_rule import COMPARISONS

METHOD = TypeAdapter(ReinforcementMethodParam)
ENV = '''
from hud import Environment
from hud.graders import contains, contains_any, exact_match, f1_score, numeric_match

env = Environment("quiz")
tooled = Environment("tooled")
CITY = "Paris"


@env.template()
async def exact(city: str):
    answer = yield f"Say {city}."
    yield exact_match(answer, city)


@env.template()
async def several(city: str):
    rest = [city.lower(), "Lyon"]
    answer = yield [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Which?"}]
    yield 0.75 * contains_any(answer, rest) + 0.25 * f1_score(answer, f"it is {city}")


@env.template()
async def number(value: float):
    answer = yield "How much?"
    yield numeric_match(answer, expected=value * 2, tolerance=0.5)


@env.template()
async def chosen(word: str):
    answer = yield "Say it."
    yield 1.0 if word in answer else 0.1


@env.template()
async def same():
    answer = yield "Say it."
    yield float(answer == CITY)


@env.template()
async def cased(word: str):
    answer = yield "Say it."
    yield contains(answer, word, case_sensitive=True)


@env.template()
async def computed(word: str):
    answer = yield "Say it."
    yield len(answer) / 100


@env.template()
async def stripped(word: str):
    answer = yield "Say it."
    answer = answer.strip()
    yield exact_match(answer, word)


@env.template(returns=int)
async def typed():
    answer = yield "Say it."
    yield float(answer.content == 3)


@tooled.tool
def look() -> str:
    """Look."""
    return "x"


@tooled.template()
async def see():
    answer = yield "Look."
    yield exact_match(answer, "x")


tasks = [
    exact(city="Paris"), exact(city="Curaçao"), several(city="Paris"), number(value=1.5),
    chosen(word="sun"), same(), cased(word="Sun"),
]
tasks += [computed(word="a"), stripped(word="a"), typed(), see()]
'''
ANSWERS = [
    "", "Paris", "paris.", "**Paris**", "It is Paris, or Lyon", "CURAÇAO", "Curac\u0327ao", "3", "−3", "3.4 or 9",
    "2.5e0", "6/2", "sun", "Sunday", "unsung Sun", "1,000", "ﬁne", "“quoted”", "\u200b", "the 3 cats!",
]  # fmt: skip


@pytest.fixture
def tasks(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    (tmp_path / "quiz.py").write_text(ENV)
    return Taskset.from_file(tmp_path / "quiz.py")


def graded(source, rows):
    """Return the rewards of rows `(item, answer)` by the emitted source, in an interpreter without our package."""
    program = source + (
        "\nimport json, sys\nassert not any(name.startswith('hud') for name in sys.modules)\n"
        "print(json.dumps([grade({'output_text': answer}, item) for item, answer in json.load(sys.stdin)]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program],
        input=json.dumps(rows),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
async def test_emitted_graders_grade_recorded_answers_as_ours_do(tasks, tmp_path):
    mappable = Taskset("quiz", tasks.tasks[:7])
    written, left_out = export_tasks(mappable, tmp_path / "rft")
    assert (written, left_out) == (7, [])
    grader = json.loads((tmp_path / "rft" / "grader.json").read_text())
    METHOD.validate_python({"grader": grader})
    items = [json.loads(line) for line in (tmp_path / "rft" / "train.jsonl").open()]
    assert [item["task"] for item in items] == [task.slug for task in mappable]
    assert [message["role"] for message in items[2]["messages"]] == ["system", "user"]
    played = {}
    for answer in ANSWERS:

        async def say(run, answer=answer):
            return answer

        for run in (await mappable.run(ScriptedAgent(say))).runs:
            played[run.slug, answer] = run.reward
    rows = [(item, answer) for item in items for answer in ANSWERS]
    found = graded(grader["source"], rows)
    for (item, answer), reward in zip(rows, found, strict=True):
        assert reward == pytest.approx(played[item["task"], answer], abs=1e-6), (item, answer)
    assert len({round(reward, 3) for reward in found}) > 4


def test_tasks_whose_graders_have_no_rule_are_left_out_by_name(tasks, tmp_path):
    _, left_out = export_tasks(tasks, tmp_path / "rft")
    reasons = {one.task.split("-")[0]: one.part for one in left_out}
    assert reasons == {
        "computed": "its grader is code: len(answer) / 100",
        "stripped": "its grader has further statements between the answer and the reward",
        "typed": "its answers have a type",
        "see": "its environment has tools (look)",
    }
    with pytest.raises(UsageError, match="No task of 'quiz' can be graded by RFT"):
        export_tasks(Taskset("quiz", tasks.tasks[7:]), tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_plain_equality_is_a_check_of_strings(tasks, tmp_path):
    same = [task for task in tasks if task.id == "same"]
    export_tasks(Taskset("quiz", same), tmp_path / "rft")
    grader = json.loads((tmp_path / "rft" / "grader.json").read_text())
    METHOD.validate_python({"grader": grader})
    assert (grader["type"], grader["operation"]) == ("string_check", "eq")
    (item,) = [json.loads(line) for line in (tmp_path / "rft" / "train.jsonl").open()]
    assert (grader["reference"], item["expected"]) == ("{{item.expected}}", "Paris")


def test_the_clients_types_refuse_what_is_no_grader():
    METHOD.validate_python({"grader": python_grader()})
    with pytest.raises(ValidationError):
        METHOD.validate_python({"grader": {"type": "score_model", "input": "a", "output": "b"}})
    assert all(f"def {name}(" in python_grader()["source"] for name in COMPARISONS)
