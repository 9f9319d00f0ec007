"""Tasks of several steps: one workspace, an instruction and tests for each step, and one reward."""

import pytest
from tests.benchmarks.played import NOTHING
from tests.integrations.containers.image_layouts import needs_bubblewrap
from tests.integrations.harbor.harbor_folders import write_task

from hud import Taskset
from hud.agents import ScriptedAgent
from hud.errors import UsageError
from hud.eval import NullRecorder
from hud.trace import ToolCall
from hud_integrations.harbor import HarborEnvironment, import_folder
from hud_integrations.harbor.task_folder import read_folder

TOML = """schema_version = "1.4"
multi_step_reward_strategy = "{strategy}"
[verifier]
timeout_sec = 60.0
env = {{ WORD = "task" }}
[environment]
network_mode = "no-network"
[[steps]]
name = "begin"
min_reward = {least}
[[steps]]
name = "go-on"
[steps.agent]
timeout_sec = 50.0
[steps.verifier]
timeout_sec = 20.0
env = {{ WORD = "step" }}
[[steps]]
name = "end"
"""
TEST = """#!/bin/bash
# The task's own: the file of the step, whose name its tests lay beside.
name=$(cat /tests/name.txt)
echo "$WORD" > /app/word-$name
grep -qx "$name" "/app/$name.txt" && echo {right} > /logs/verifier/reward.json || echo 0 > /logs/verifier/reward.txt
"""
STEPS = ("begin", "go-on", "end")


def write_steps(root, *, strategy="mean", least="1.0", right="1", name="steps"):
    write_task(root, name)
    folder = root / name
    files = {
        "task.toml": TOML.format(strategy=strategy, least=least),
        "tests/test.sh": TEST.format(right=right),
        "steps/go-on/workdir/setup.sh": "test ! -f broken && echo set-up > ready.txt\n",
        "steps/go-on/workdir/more/hint.txt": "a hint\n",
    }
    for step in STEPS:
        files[f"steps/{step}/instruction.md"] = f"Write {step} to {step}.txt.\n"
        files[f"steps/{step}/tests/name.txt"] = f"{step}\n"
        files[f"steps/{step}/solution/solve.sh"] = f"cp /solution/right.txt {step}.txt\n"
        files[f"steps/{step}/solution/right.txt"] = f"{step}\n"
    for path, text in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    (folder / "instruction.md").unlink()
    return folder


async def play(folder, agent=None):
    env = HarborEnvironment(folder)
    job = await Taskset("steps", env.all_tasks()).run(
        agent or ScriptedAgent(env.oracle), recorder=NullRecorder()
    )
    return job.runs[0]


def working(*steps, **moves):
    """An agent that does these of the steps, and calls finish_step after each of all."""

    async def agent(run):
        shell = await run.open("ssh")
        seen = [run.prompt_text]
        for step in STEPS:
            if step in steps:
                await shell.run(f"echo {step} > {step}.txt")
            if step in moves:
                await shell.run(moves[step])
            done = await run.call_tool(ToolCall(id=step, name="finish_step"))
            seen.append(done.text)
        return (
            "\n".join(seen)
            + (
                await shell.run("ls; cat ready.txt more/hint.txt word-*; ls /tests /logs/verifier")
            ).stdout
        )

    return ScriptedAgent(agent)


@pytest.mark.slow
@needs_bubblewrap
async def test_the_solutions_of_the_steps_earn_everything_and_nothing_earns_nothing(tmp_path):
    write_steps(tmp_path)
    run = await play(tmp_path)
    assert (run.reward, run.error) == (1.0, None)
    assert [part["name"] for part in run.grade.subscores] == list(STEPS)
    assert (await play(tmp_path, NOTHING)).reward == 0.0


@pytest.mark.slow
@needs_bubblewrap
async def test_each_step_has_its_instruction_its_files_and_its_tests(tmp_path):
    write_steps(tmp_path)
    run = await play(tmp_path, working("begin", "end"))
    assert run.reward == pytest.approx(2 / 3)
    text = run.trace.content
    assert text.startswith("Write begin to begin.txt.\n\nThis task has 3 steps")
    assert (
        text.index("Write go-on to") < text.index("Write end to") < text.index("The task is over")
    )
    assert "set-up\na hint\n" in text
    assert "word-begin\n" in text
    assert (
        text.endswith("task\ntask\nstep\n/logs/verifier:\n\n/tests:\n")
        or "task\ntask\nstep\n" in text
    )
    assert run.trace.content.rstrip().endswith(
        "/tests:"
    )  # The tests of a step are gone when it is over.


@pytest.mark.slow
@needs_bubblewrap
@pytest.mark.parametrize(
    ("strategy", "steps", "least", "reward"),
    [
        ("final", ("begin", "end"), "1.0", 1.0),
        ("final", ("begin", "go-on"), "1.0", 0.0),
        ("final", ("go-on", "end"), "1.0", 0.0),  # It ends with the first step.
        ("mean", ("go-on", "end"), "1.0", 0.0),
        ("mean", ("go-on", "end"), "0.0", 2 / 3),
        ("mean", ("begin",), "{ style = 0.5 }", 0.0),
    ],
)
async def test_rewards_of_steps_become_one(tmp_path, strategy, steps, least, reward):
    right = "1" if least != "{ style = 0.5 }" else '\'{"reward": 0, "style": 0.2}\''
    write_steps(tmp_path, strategy=strategy, least=least, right=right)
    run = await play(tmp_path, working(*steps))
    assert run.reward == pytest.approx(reward), run.error


@pytest.mark.slow
@needs_bubblewrap
async def test_the_steps_that_an_agent_does_not_come_to_are_graded_as_they_are(tmp_path):
    async def ahead(run):
        shell = await run.open("ssh")
        await shell.run("for step in begin go-on end; do echo $step > $step.txt; done")
        return "done"

    write_steps(tmp_path)
    assert (await play(tmp_path, ScriptedAgent(ahead))).reward == 1.0


@pytest.mark.slow
@needs_bubblewrap
async def test_what_runs_in_the_background_does_not_see_the_tests_of_a_step(tmp_path):
    watch = "(while true; do cp -r /tests/. /app/seen/ 2>/dev/null; echo 1 > /logs/verifier/reward.json; done) >/dev/null 2>&1 &"
    write_steps(tmp_path, least="0.0")
    begin = f"mkdir -p seen; {watch}"

    async def agent(run):
        shell = await run.open("ssh")
        await shell.run(begin)
        await run.call_tool(ToolCall(id="1", name="finish_step"))
        return (await shell.run("ls seen; cat /proc/[0-9]*/cmdline | tr '\\0' ' '")).stdout

    run = await play(tmp_path, ScriptedAgent(agent))
    assert run.reward == 0.0
    assert "name.txt" not in run.trace.content
    assert "while true" not in run.trace.content


@pytest.mark.slow
@needs_bubblewrap
async def test_a_step_whose_tests_write_no_reward_is_a_failure_of_the_run(tmp_path):
    write_steps(tmp_path, right="nonsense")
    run = await play(tmp_path, working("begin"))
    assert (run.failure_kind, run.reward) == ("agent", 0.0)
    assert "wrote no rewards" in run.error


@pytest.mark.slow
@needs_bubblewrap
async def test_an_agent_that_breaks_the_set_up_of_a_step_has_failed(tmp_path):
    write_steps(tmp_path)
    run = await play(tmp_path, working("begin", begin="touch broken"))
    assert (run.failure_kind, run.reward) == ("agent", 0.0)
    assert "setup.sh of step 'go-on' ended with 1" in run.error


def test_steps_are_read_with_what_they_declare(tmp_path):
    task = read_folder(write_steps(tmp_path, least="{ style = 0.5 }"), "steps")
    assert (task.refused, [step.name for step in task.steps]) == ([], list(STEPS))
    begin, middle, end = task.steps
    assert (begin.least, middle.least) == ({"style": 0.5}, {})
    assert (middle.agent_seconds, middle.verifier_seconds, middle.variables) == (
        50.0,
        20.0,
        {"WORD": "step"},
    )
    assert (end.agent_seconds, end.verifier_seconds, end.variables) == (
        None,
        60.0,
        {"WORD": "task"},
    )


def test_a_step_without_a_folder_is_refused(tmp_path):
    folder = write_steps(tmp_path)
    (folder / "steps/end/instruction.md").unlink()
    with pytest.raises(UsageError, match="step 'end' has no steps/end/instruction.md"):
        read_folder(folder, "steps")


def test_tasks_with_steps_and_without_are_imported_to_folders_of_their_own(tmp_path):
    write_steps(tmp_path / "in")
    write_task(tmp_path / "in", "plain", dockerfile="FROM scratch\nWORKDIR /app\n")
    (tmp_path / "in/steps/environment/Dockerfile").write_text("FROM scratch\nWORKDIR /app\n")
    written, _ = import_folder(tmp_path / "in", tmp_path / "out")
    assert sorted(written.values()) == [1, 1]
