"""`bfcl-multi-turn`: conversations over stateful APIs, each run with instances of its own."""

from __future__ import annotations

import asyncio

import jsonschema
import pytest
from tests.benchmarks.played import NOTHING, installed, rewards

from hud.agents import ScriptedAgent
from hud.eval import NullRecorder, Taskset
from hud.trace import ToolCall
from hud_benchmarks.bfcl.benchmarks import CATEGORIES, LEFT_OUT, entries, scenarios

TRAVEL = "multi_turn_long_context_171"


@pytest.fixture(scope="module")
def bfcl():
    return installed("bfcl-multi-turn")


def instances():
    """Instances of the package's APIs that runs left behind."""
    from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils

    return [name for name in vars(multi_turn_utils) if name.startswith("run")]


async def played(tasks, script):
    """One run of each task by a script of the whole run."""
    return (await tasks.run(ScriptedAgent(script), recorder=NullRecorder())).runs


async def call(run, name, **arguments):
    return await run.call_tool(ToolCall(id="1", name=name, arguments=arguments))


@pytest.mark.slow
@pytest.mark.parametrize("split", ["train", "held-out"])
async def test_a_sample_of_solutions_scores_1_and_doing_nothing_0(bfcl, split):
    tasks = bfcl.tasks(split)
    some = tasks.filter([tasks[at].slug for at in range(0, len(tasks), 17)])
    assert set((await rewards(some, bfcl.oracle())).values()) == {1.0}
    assert set((await rewards(some, NOTHING)).values()) == {0.0}
    assert instances() == []


@pytest.mark.slow
@pytest.mark.parametrize("split", ["train", "held-out"])
async def test_every_solution_scores_1_and_doing_nothing_0(bfcl, split):
    tasks = bfcl.tasks(split)
    assert {k: v for k, v in (await rewards(tasks, bfcl.oracle())).items() if v != 1.0} == {}
    assert {k: v for k, v in (await rewards(tasks, NOTHING)).items() if v != 0.0} == {}


def test_all_the_packages_entries_are_tasks_but_those_left_out_by_name(bfcl):
    slugs = [task.slug for split in ("train", "held-out") for task in bfcl.tasks(split)]
    assert len(slugs) == len(set(slugs)) == 200 * len(CATEGORIES) - len(LEFT_OUT)
    assert not LEFT_OUT.keys() & set(slugs)
    assert {split: len(bfcl.tasks(split)) for split in bfcl.sizes} == bfcl.sizes


def test_a_scenario_and_a_world_are_on_one_side_of_the_split(bfcl):
    from hud_benchmarks.bfcl.dialogues import dialogue

    assert not set(scenarios("train")) & set(scenarios("held-out"))
    worlds = [
        {repr(dialogue(entry).entry["initial_config"]) for _, entry in entries(split)}
        for split in ("train", "held-out")
    ]
    assert not worlds[0] & worlds[1]


async def test_the_entry_that_is_left_out_cannot_be_solved_by_its_own_solution(bfcl):
    from hud_benchmarks.bfcl.environment import conversation

    tasks = Taskset("left out", [conversation(entry=entry) for entry in LEFT_OUT])
    assert set((await rewards(tasks, bfcl.oracle())).values()) == {0.0}


async def test_runs_of_one_task_at_the_same_time_do_not_meet(bfcl):
    """A run that makes every call twice, between the calls of others, changes nothing for them."""
    oracle = bfcl.oracle()

    async def both(run):
        if run.attempt % 2 == 0:
            await oracle(run)
            return
        once = run.call_tool

        async def twice(asked, **options):
            await once(asked, **options)
            await asyncio.sleep(0)
            return await once(asked, **options)

        run.call_tool = twice
        await oracle(run)

    tasks = bfcl.tasks("held-out").filter([TRAVEL, "multi_turn_base_3"])
    job = await tasks.run(ScriptedAgent(both), group=6, recorder=NullRecorder())
    assert [run.reward for run in job.runs if run.attempt % 2 == 0] == [1.0] * 6
    assert 0.0 in [run.reward for run in job.runs if run.attempt % 2 == 1]
    assert instances() == []


def test_runs_share_nothing_that_can_change(bfcl):
    """The package hands parts of its own module to every instance of a long context."""
    from hud_benchmarks.bfcl.dialogues import dialogue
    from hud_benchmarks.bfcl.talk import Talk

    for category in CATEGORIES:
        talks = [Talk(dialogue(TRAVEL.replace("long_context", category))) for _ in range(2)]
        mine, others = map(_parts, talks)
        for talk in talks:
            talk.close()
        assert mine
        assert not mine.keys() & others.keys()


def _parts(talk):
    """Objects that can change, reachable from a run's instances, by their ids."""
    from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils

    found = {}

    def walk(value):
        inner = type(value).__module__.startswith("bfcl_eval")
        if not (isinstance(value, dict | list | set) or inner) or id(value) in found:
            return
        found[id(value)] = value
        parts = vars(value) if inner else value
        for part in parts.values() if isinstance(parts, dict) else parts:
            walk(part)

    for name, value in vars(multi_turn_utils).items():
        if name.startswith(talk.model_name):
            walk(value)
    return found


async def test_functions_that_were_missing_arrive_with_the_users_word(bfcl):
    slug = "multi_turn_miss_func_3"
    offered = []

    async def reply(run):
        for _ in range(9):
            offered.append({tool.name for tool in run.tools})
            said = (await call(run, "reply", message="Done.")).text
            if "updated some more functions" in said:
                offered.append({tool.name for tool in run.tools})
                return

    await played(bfcl.tasks("held-out").filter([slug]), reply)
    assert "reply" in offered[0]
    assert offered[-2] < offered[-1], "more functions after the message than before"


async def test_a_conversation_that_ends_early_says_how_far_it_came(bfcl):
    (run,) = await played(bfcl.tasks().filter(["multi_turn_base_3"]), lambda run: "bye")
    assert (run.reward, run.grade.info["turns_reached"]) == (0.0, 1)
    assert "empty for turn 0" in run.grade.content


async def test_after_the_last_reply_nothing_is_called(bfcl):
    said = []

    async def talk(run):
        said.extend([await call(run, "reply", message="Done.") for _ in range(12)])
        said.append(await call(run, "ls"))

    await played(bfcl.tasks().filter(["multi_turn_base_3"]), talk)
    assert "over" in said[-2].text
    assert said[-1].is_error


async def test_arguments_are_data_whatever_they_hold(bfcl, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = "__import__('pathlib').Path('made').touch()"
    said = []

    async def attack(run):
        said.append(await call(run, "touch", file_name=f"' + str({code}) + '"))
        said.append(await call(run, "touch", **{f"file_name=str({code}), x": 1}))
        await call(run, "touch", file_name="note.txt")
        said.append(await call(run, "echo", content=code, file_name="note.txt"))
        said.append(await call(run, "cat", file_name="note.txt"))

    await played(bfcl.tasks().filter(["multi_turn_base_3"]), attack)
    assert list(tmp_path.iterdir()) == []
    assert said[1].is_error
    assert code in said[3].text


async def test_mathematics_without_end_is_refused(bfcl):
    task = next(task for task in bfcl.tasks() if "MathAPI" in task.columns["apis"])
    said = []

    async def attack(run):
        said.append(await call(run, "power", base=9, exponent=10**9))
        said.append(await call(run, "logarithm", value=2, base=10, precision=10**9))
        said.append(await call(run, "add", a=float("inf"), b=1))
        said.append(await call(run, "power", base=2, exponent=10))
        said.append(await call(run, "add", a=10**400, b=1))
        said.append(await call(run, "power", base=10**4_000, exponent=9_999))

    (run,) = await played(bfcl.tasks().filter([task.slug]), attack)
    assert [result.is_error for result in said] == [True, True, True, False, False, True]
    assert "1024" in said[3].text
    assert (run.error, run.reward) == (None, 0.0)


@pytest.mark.slow
async def test_copies_of_copies_fill_the_file_system_and_no_time(bfcl):
    """Two copies of a folder in the next one: 2**100 entries after 400 calls, of which the grader compares each."""

    async def script(run):
        results = []
        await call(run, "mkdir", dir_name="d0")
        for place in range(100):
            folder, inner = f"d{place + 1}", f"d{place}"
            await call(run, "mkdir", dir_name=folder)
            for name in (inner, f"{inner}-copy"):
                if name != inner:
                    await call(run, "cp", source=inner, destination=name)
                results.append(await call(run, "cp", source=name, destination=folder))
        assert "No space left" in results[-1].text
        results.append(await call(run, "find", path=".", name="nothing"))
        assert not results[-1].is_error

    tasks = bfcl.tasks("train")
    async with asyncio.timeout(60):
        (run,) = await played(tasks.filter(["multi_turn_base_0"]), script)
    assert run.reward == 0.0


async def test_a_call_of_great_length_is_refused(bfcl):
    async def script(run):
        names = ["a"] * 100_000
        result = await call(run, "mention", tweet_id=0, mentioned_usernames=names)
        assert "at most 20,000 characters" in result.text

    (run,) = await played(bfcl.tasks("train").filter(["multi_turn_base_0"]), script)
    assert run.reward == 0.0


async def test_a_state_that_cannot_be_compared_is_a_wrong_one(bfcl):
    """Folders nested beyond what Python compares must not void the run that made them."""

    async def dig(run):
        for _ in range(2000):
            await call(run, "mkdir", dir_name="d")
            await call(run, "cd", folder="d")

    (run,) = await played(bfcl.tasks().filter(["multi_turn_base_3"]), dig)
    assert (run.error, run.reward) == (None, 0.0)


@pytest.mark.slow
async def test_the_tools_have_schemas(bfcl):
    from hud_benchmarks.bfcl.dialogues import functions

    apis = {api for task in bfcl.tasks() for api in task.columns["apis"].split(", ")}
    assert len(apis) == 8
    for api in apis:
        for spec in functions(api).values():
            jsonschema.Draft202012Validator.check_schema(spec.parameters)
            assert spec.parameters["type"] == "object"
