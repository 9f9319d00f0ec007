"""Templates: two yields make an episode, calling one makes a task, and every other shape is told."""

from __future__ import annotations

import base64
import datetime
import decimal
import enum
import json
import math

import numpy as np
import pytest
from pydantic import BaseModel

from hud.environment import Answer, Environment, Task
from hud.errors import EnvironmentFault, GraderFault, NotFoundError, UsageError
from hud.graders import EvaluationResult, SubScore
from hud.trace import AgentStep, ImageContent, Message, TextContent, ToolCall, Trace


class Level(enum.Enum):
    EASY = "easy"
    HARD = "hard"


class Item(BaseModel):
    name: str
    price: float = 1.0


async def played(env, task, answer="", trace=None):
    async with env.run() as run:
        await run.start(task.id, task.args)
        return await run.grade(answer, trace)


def one_template(function, **options):
    env = Environment("templates", reward_range=options.pop("reward_range", (0.0, 1.0)))
    return env, env.template(**options)(function)


# Making tasks.


def test_calling_a_template_makes_a_task_and_runs_nothing():
    ran = []
    env = Environment("shop", version="2.1")

    @env.template(id="buy", description="Buy one thing.")
    async def purchase(item: str, count: int = 1):
        ran.append(item)
        yield "Buy."
        yield 1.0

    for task in (purchase("milk"), purchase(item="milk"), purchase.task(item="milk")):
        assert (task.env, task.id, task.args) == ("shop", "buy", {"item": "milk"})
        assert task.environment is env
    assert ran == []
    assert env.tasks == {"buy": purchase}
    assert purchase.row()["description"] == "Buy one thing."
    assert purchase.args_schema["properties"]["count"]["default"] == 1


def test_scenario_is_the_same_with_its_name_first():
    env = Environment("shop")

    @env.scenario("checkout")
    async def function(item: str = "milk"):
        """Pay for it."""
        yield "Pay."
        yield 1.0

    @env.scenario()
    async def browse():
        yield "Look."
        yield 1.0

    @env.template
    async def leave():
        yield "Go."
        yield 1.0

    assert list(env.templates) == ["checkout", "browse", "leave"]
    assert function.row()["description"] == "Pay for it."
    assert function.task(item="tea").id == "checkout"


def test_two_templates_of_one_id_and_other_functions_are_refused():
    env = Environment("shop")

    async def buy():
        yield "?"
        yield 1.0

    env.template(buy)
    with pytest.raises(UsageError, match="already has a template 'buy'"):
        env.template(buy)
    with pytest.raises(UsageError, match="async generator"):
        env.template(lambda: 1.0)

    async def coroutine():
        return 1.0

    with pytest.raises(UsageError, match="async generator"):
        env.template(coroutine)


def test_arguments_are_validated_when_a_task_is_made():
    async def buy(item: str, count: int = 1, level: Level = Level.EASY):
        yield "?"
        yield 1.0

    _, template = one_template(buy)
    for wrong, said in [
        (lambda: template(), "argument 'item' is missing"),
        (lambda: template("milk", count="many"), "argument 'count'"),
        (lambda: template("milk", colour="red"), "no argument 'colour'"),
        (lambda: template("milk", level="medium"), "argument 'level'"),
        (lambda: template("milk", 1, "easy", 4), "takes 3 arguments, not 4"),
        (lambda: template("milk", item="tea"), "'item' twice"),
    ]:
        with pytest.raises(UsageError, match=said):
            wrong()


async def test_arguments_reach_the_template_as_annotated_also_from_json():
    seen = []

    async def buy(
        when: datetime.date,
        items: list[Item],
        level: Level = Level.EASY,
        note: str | None = None,
    ):
        seen.append((when, items, level, note))
        yield "Buy."
        yield 1.0

    env, template = one_template(buy)
    task = template(datetime.date(2024, 2, 29), [Item(name="milk")], level=Level.HARD)
    again = Task.model_validate_json(task.model_dump_json())
    assert again == task
    for row in (task, again, Task.model_validate(json.loads(json.dumps(task.model_dump())))):
        await played(env, row)
    assert seen == [(datetime.date(2024, 2, 29), [Item(name="milk")], Level.HARD, None)] * 3


async def test_defaults_apply_when_it_runs_and_stay_out_of_the_row():
    async def buy(item: str = "milk", count: int = 2):
        answer = yield f"Buy {count} {item}."
        yield float(answer == "done")

    env, template = one_template(buy)
    assert template().args == {}
    async with env.run() as run:
        assert (await run.start("buy", {})).prompt == "Buy 2 milk."
        assert (await run.start("buy", {"count": 3})).prompt == "Buy 3 milk."


async def test_a_row_with_wrong_arguments_is_refused_before_it_runs():
    async def buy(count: int):
        yield "?"
        yield 1.0

    env, _ = one_template(buy)
    async with env.run() as run:
        with pytest.raises(UsageError, match="'count'"):
            await run.start("buy", {"count": "many"})
        with pytest.raises(NotFoundError, match="no template 'by' \\(there are: buy\\)"):
            await run.start("by", {})


def test_a_whole_row_survives_json():
    row = Task(
        env="shop",
        id="buy",
        args={"item": "milk", "deep": [{"a": None}, 1.5, "é"]},
        slug="buy-milk",
        columns={"split": "test"},
        validation=[{"tool": "pay", "arguments": {}}],
        agent_config={"max_steps": 3},
        runtime_config={"limits": {"run_timeout_s": 5}},
        verifier=Task(env="shop", id="check", args={"strict": True}),
    )
    again = Task.model_validate_json(row.model_dump_json())
    assert again == row
    assert isinstance(again.verifier, Task)
    assert again.verifier.slug == row.verifier.slug


def test_slugs_are_stable_and_follow_the_arguments():
    first = Task(env="shop", id="buy", args={"a": 1, "b": 2})
    assert first.slug == Task(env="shop", id="buy", args={"b": 2, "a": 1}).slug
    assert first.slug != Task(env="shop", id="buy", args={"a": 1}).slug
    assert Task(env="shop", id="buy").slug == "buy"
    assert Task(env="shop", id="buy", slug="mine").slug == "mine"


# The first yield.


async def prompt_of(value):
    async def template():
        yield value
        yield 1.0

    env, _ = one_template(template)
    async with env.run() as run:
        return (await run.start("template", {})).prompt


async def test_prompts_are_text_or_messages():
    assert await prompt_of("Hello") == "Hello"
    assert await prompt_of({"role": "system", "content": "Be brief."}) == [
        Message(role="system", content="Be brief.")
    ]
    assert await prompt_of(["One.", Message(role="assistant", content="Two.")]) == [
        Message(content="One."),
        Message(role="assistant", content="Two."),
    ]


async def test_prompts_may_hold_images_in_both_common_shapes():
    data = base64.b64encode(b"png").decode()
    blocks = [
        {"type": "text", "text": "What is this?"},
        {"type": "image", "data": data, "mimeType": "image/png"},
        {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{data}"}},
    ]
    (message,) = await prompt_of([{"role": "user", "content": blocks}])
    assert message.text == "What is this?"
    assert message.content[1] == ImageContent(data=data, mime_type="image/png")
    assert message.content[2] == ImageContent(data=data, mime_type="image/jpeg")
    (message,) = await prompt_of(Message(content=[TextContent(text="As blocks.")]))
    assert message.text == "As blocks."


@pytest.mark.parametrize(
    "value",
    [
        None,
        3,
        [],
        [3],
        [{"role": "user"}],
        [{"role": "king", "content": "x"}],
        [{"role": "user", "content": [{"type": "video", "data": "x"}]}],
        [{"role": "user", "content": [7]}],
        {"role": "user", "content": None},
        [{"content": [{"type": "image_url", "image_url": {"url": "https://a.test/x.png"}}]}],
        [{"content": [{"type": "image_url", "image_url": {"url": "data:image/png,plain"}}]}],
        {"prompt": None},
        {"prompt": "Hello", "bindings": ["robot"]},
        {"prompt": "Hello", "bindings": {"robot": "token"}},
    ],
)
async def test_what_is_no_prompt_is_the_environments_fault(value):
    with pytest.raises(EnvironmentFault, match="Template 'template' yielded"):
        await prompt_of(value)


async def test_failures_before_the_prompt_are_the_environments():
    async def raising():
        raise KeyError("no such row")
        yield "?"

    async def empty():
        return
        yield "?"

    for function, said in [(raising, "KeyError: 'no such row'"), (empty, "without a yield")]:
        env, template = one_template(function)
        with pytest.raises(EnvironmentFault, match=said):
            await played(env, template())


# What comes back from the first yield.


async def test_the_answer_is_text_that_carries_the_trace():
    seen = []

    async def template():
        answer = yield "?"
        seen.append(answer)
        yield float(answer.strip().lower() == "42" and len(answer.trace.tool_calls) == 1)

    env, minted = one_template(template)
    trace = Trace(content="42 ")
    trace.record(AgentStep(tool_calls=[ToolCall(id="1", name="look")]))
    assert (await played(env, minted(), "42 ", trace))["score"] == 1.0
    (answer,) = seen
    assert isinstance(answer, str)
    assert answer == "42 "
    assert f"{answer}!" == "42 !"
    assert answer.content == answer.raw == "42 "
    assert answer.trace == trace
    assert answer.trace is not trace


async def test_without_a_trace_the_answer_has_an_empty_one():
    async def template():
        answer = yield "?"
        yield float(answer.trace.steps == [] and answer.trace.content == "x")

    env, minted = one_template(template)
    assert (await played(env, minted(), "x"))["score"] == 1.0


@pytest.mark.parametrize(
    ("returns", "raw", "content", "parsed"),
    [
        (int, "42", 42, True),
        (int, "forty-two", "forty-two", False),
        (Item, '{"name": "milk"}', Item(name="milk"), True),
        (Item, '{"name": 3}', '{"name": 3}', False),
        (list[int], "[1, 2]", [1, 2], True),
        (list[int], "```json\n[1, 2]\n```", [1, 2], True),
        (Level, '"hard"', Level.HARD, True),
        (Level, "hard", Level.HARD, True),
        (datetime.date, "2024-02-29", datetime.date(2024, 2, 29), True),
        (str, "just text", "just text", True),
        (int | None, "null", None, True),
        (bool, "false", False, True),
    ],
)
async def test_returns_parses_the_answer_and_keeps_what_it_cannot(returns, raw, content, parsed):
    seen = []

    async def template():
        answer = yield "?"
        seen.append(answer)
        yield 1.0

    env, minted = one_template(template, returns=returns)
    await played(env, minted(), raw)
    (answer,) = seen
    assert isinstance(answer, Answer)
    assert answer.content == content
    assert type(answer.content) is type(content)
    assert (answer.raw, answer.parsed) == (raw, parsed)
    assert "returns" in minted.row()


# The second yield.


async def grade_of(value, reward_range=(0.0, 1.0)):
    async def template():
        yield "?"
        yield value

    env, minted = one_template(template, reward_range=reward_range)
    return await played(env, minted())


@pytest.mark.parametrize(
    ("value", "score"),
    [
        (0, 0.0),
        (1, 1.0),
        (0.25, 0.25),
        (True, 1.0),
        (np.float32(0.5), 0.5),
        (np.int64(1), 1.0),
        (decimal.Decimal("0.5"), 0.5),
        ({"score": 0.5}, 0.5),
        (EvaluationResult(reward=0.5), 0.5),
        (SubScore(name="x", value=0.5), 0.5),
        (0.1 + 0.2 + 0.7, 1.0),
        (1.0 + 1e-12, 1.0),
        (-1e-12, 0.0),
    ],
)
async def test_grades_are_numbers_dicts_or_results(value, score):
    frame = await grade_of(value)
    assert frame["score"] == score
    assert type(frame["score"]) is float
    assert frame["done"] is True


async def test_a_grade_keeps_its_reasons():
    result = EvaluationResult(
        reward=0.5,
        content="Half right.",
        info={"rows": 3},
        subscores=[SubScore(name="a", value=0.5, info={"why": "half"})],
    )
    frame = await grade_of(result)
    assert (frame["content"], frame["info"]) == ("Half right.", {"rows": 3})
    assert frame["subscores"][0]["info"] == {"why": "half"}
    assert await grade_of({"score": 1, "done": False, "extra": [1]}) == {
        "score": 1.0,
        "done": False,
        "extra": [1],
    }


@pytest.mark.parametrize("levels", [240, 900, 50_000, None])
async def test_reasons_without_an_end_do_not_void_a_grade(levels):
    """A grader may repeat an answer that it has parsed: `[[[...`."""
    reason = []
    if levels is None:
        reason.append(reason)
    for _ in range(levels or 0):
        reason = [reason]
    graded = await grade_of(EvaluationResult(reward=0.25, info={"parsed": reason}))
    assert graded["score"] == 0.25


async def test_reasons_that_json_cannot_say_are_made_plain():
    frame = await grade_of({"score": 1.0, "info": {"at": datetime.date(2024, 2, 29), "s": {1}}})
    assert json.loads(json.dumps(frame))["info"] == {"at": "2024-02-29", "s": [1]}
    frame = await grade_of(EvaluationResult(reward=1.0, info={"what": object, "n": math.nan}))
    assert json.loads(json.dumps(frame))["info"]["n"] is None


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "graded with None, a NoneType"),
        ("1.0", "graded with '1.0', a str"),
        ([1.0], "a list"),
        ({}, "without 'score'"),
        ({"reward": 1.0}, r"without 'score' \(it has: reward\)"),
        ({"score": "high"}, "a str"),
        (float("nan"), "not a finite number"),
        (float("inf"), "not a finite number"),
        ({"score": float("-inf")}, "not a finite number"),
        (1.5, r"1.5, outside \[0, 1\]"),
        (-0.5, r"-0.5, outside \[0, 1\]"),
        (EvaluationResult(reward=2.0), "outside"),
        (1 + 1j, "a complex"),
    ],
)
async def test_what_is_no_reward_is_the_graders_fault(value, said):
    with pytest.raises(GraderFault, match=said):
        await grade_of(value)


async def test_negative_rewards_need_a_declared_range():
    assert (await grade_of(-0.5, reward_range=(-1.0, 1.0)))["score"] == -0.5
    with pytest.raises(GraderFault, match=r"outside \[-1, 1\]; .*reward_range"):
        await grade_of(-1.5, reward_range=(-1.0, 1.0))
    for wrong in [(1.0, 0.0), (0.0, 0.0), (0.0, math.inf), (math.nan, 1.0)]:
        with pytest.raises(UsageError, match="reward_range"):
            Environment("x", reward_range=wrong)


async def test_one_yield_three_yields_and_errors_while_grading_are_the_graders_fault():
    async def once():
        yield "?"

    async def thrice():
        yield "?"
        yield 1.0
        yield 0.0

    async def raising():
        yield "?"
        raise KeyError("row")

    async def raising_after():
        yield "?"
        yield 1.0
        raise KeyError("row")

    for function, said in [
        (once, "ended after one yield"),
        (thrice, "yielded a third time"),
        (raising, r"raised KeyError: 'row' \(.*test_environment_templates.py:\d+\) while grading"),
        (raising_after, r"raised KeyError: 'row' \(.*:\d+\) after its reward"),
    ]:
        env, minted = one_template(function)
        with pytest.raises(GraderFault, match=said):
            await played(env, minted())


async def test_an_episode_is_closed_however_it_ends():
    closed = []

    async def template(ending: str):
        try:
            yield "?"
            if ending == "raise":
                raise ValueError
            yield 2.0 if ending == "wrong" else 1.0
        finally:
            closed.append(ending)

    env, minted = one_template(template)
    assert (await played(env, minted("well")))["score"] == 1.0
    for ending in ("raise", "wrong"):
        with pytest.raises(GraderFault):
            await played(env, minted(ending))
    async with env.run() as run:
        await run.start("template", {"ending": "left"})
        await run.start("template", {"ending": "replaced by"})
    assert closed == ["well", "raise", "wrong", "left", "replaced by"]


async def test_grading_without_a_task_and_twice_is_refused():
    async def template():
        yield "?"
        yield 1.0

    env, _ = one_template(template)
    async with env.run() as run:
        with pytest.raises(UsageError, match="no task in progress"):
            await run.grade("x", None)
        await run.start("template", {})
        await run.grade("x", None)
        with pytest.raises(UsageError, match="no task in progress"):
            await run.grade("x", None)
