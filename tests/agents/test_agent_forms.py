"""The forms of an agent: a slug, a function of the run or of the conversation, an `Agent` or its class."""

from __future__ import annotations

import json
from functools import partial

import pytest

import hud.client
from hud.agents import Agent, ClaudeAgent, ScriptedAgent
from hud.agents.agent_forms import as_agent
from hud.cli.main import run as hud_command
from hud.errors import NotFoundError, UsageError
from hud.eval import Chat, HostedRuntime, Job, Taskset
from hud.eval.rollouts import rollout
from hud.trace import Completion, ToolCall
from hud.trace.recording.recorder import NullRecorder

ENVIRONMENT = '''
from hud import Environment

env = Environment("counting")


@env.tool
def count(letter: str) -> int:
    """Count a letter."""
    return "strawberry".count(letter)


@env.template()
async def letters(letter: str):
    answer = yield f"How many {letter}?"
    yield float(answer == str("strawberry".count(letter)))


tasks = [letters(letter="r"), letters(letter="b")]
'''


class Recorded(NullRecorder):
    """Counts the jobs and runs that are recorded."""

    def __init__(self):
        self.jobs, self.runs = [], []

    def job_started(self, job):
        self.jobs.append(job)

    def run_started(self, run):
        self.runs.append(run)


def _environment():
    module = {}
    exec(ENVIRONMENT, module)
    return module


@pytest.fixture
def tasks():
    return Taskset("letters", _environment()["tasks"])


@pytest.fixture
def home(tmp_path, monkeypatch):
    home = tmp_path / "home"
    for name in ("HUD_API_URL", "HUD_GATEWAY_URL", "HUD_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HUD_HOME", str(home))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "env.py").write_text(ENVIRONMENT)
    yield tmp_path
    hud.client.disconnect(home)


def letter_of(messages):
    return messages[-1]["content"][-2]


def one_call(messages, tools, trace):
    if messages[-1]["role"] == "tool":
        return messages[-1]["content"]
    return ToolCall(name="count", arguments={"letter": letter_of(messages)})


def several_calls(messages, tools, trace):
    if messages[-1]["role"] == "tool":
        return messages[-1]["content"]
    call = ToolCall(name="count", arguments={"letter": letter_of(messages)})
    return [call, call]


async def awaited_call(messages, tools, trace):
    return one_call(messages, tools, trace)


def whole_run(run):
    return "strawberry".count(run.task.args["letter"])


async def awaited_run(run):
    result = await run.call_tool(ToolCall(name="count", arguments=run.task.args))
    return result.text


async def answer_by_the_trace(run):
    run.trace.content = str(whole_run(run))


class Counting(Agent):
    async def __call__(self, run):
        run.trace.content = str(whole_run(run))


class CallableObject:
    async def __call__(self, run):
        return whole_run(run)


RIGHT = [
    one_call,
    several_calls,
    awaited_call,
    whole_run,
    awaited_run,
    answer_by_the_trace,
    Counting(),
    Counting,
    CallableObject(),
    ScriptedAgent(one_call),
]


@pytest.mark.parametrize(
    "agent", RIGHT, ids=lambda form: getattr(form, "__name__", type(form).__name__)
)
async def test_every_form_plays_in_python(tasks, agent):
    job = await tasks.run(agent, recorder=NullRecorder())
    assert (job.reward, job.errors) == (1.0, [])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["one_call", "several_calls", "whole_run", "awaited_run", "Counting"]
)
def test_the_command_takes_the_same_forms(home, capsys, name):
    source = "from tests.agents.test_agent_forms import *\n"
    (home / "mine.py").write_text(source)
    arguments = ["env.py", f"mine.py:{name}", "--all", "--runtime", "local", "--json"]
    assert hud_command(["eval", *arguments]) == 0
    assert json.loads(capsys.readouterr().out)["reward"] == 1.0


async def test_a_function_gives_its_name_to_its_runs(tasks):
    job = await tasks.run(whole_run, recorder=NullRecorder())
    assert {run.model for run in job.runs} == {"whole_run"}


async def test_a_scripted_agent_has_the_name_of_its_function_or_file(tasks, tmp_path):
    source = "def agent(run):\n    return 'yes'\n\nasync def careful(run):\n    return 'yes'\n"
    (tmp_path / "clerk.py").write_text(f"{source}\nquick = lambda run: 'yes'\n")
    names = {"clerk.py": "clerk", "clerk.py:careful": "careful", "clerk.py:quick": "clerk"}
    for target, name in names.items():
        assert as_agent(str(tmp_path / target)).model_name == name
    assert ScriptedAgent(one_call).model_name == "one_call"
    assert ScriptedAgent(partial(whole_run)).model_name == "whole_run"
    assert ScriptedAgent(one_call, name="oracle").model_name == "oracle"
    typed = {}
    exec("def agent(run):\n    return 'yes'", typed)
    assert as_agent(typed["agent"]).model_name == "scripted"


async def test_calls_without_an_id_get_one_each(tasks):
    job = await tasks[0].run(several_calls, recorder=NullRecorder())
    ids = [call.id for call in job.runs[0].trace.tool_calls]
    assert len(set(ids)) == 2
    assert all(ids)


async def test_a_slug_is_a_model_of_the_catalogue(tasks, home):
    recorded = Recorded()
    with pytest.raises(NotFoundError, match="no-such-model"):
        await tasks.run("no-such-model", recorder=recorded)
    assert recorded.jobs == []


@pytest.mark.slow
async def test_names_of_the_command_are_names_in_python(tasks, home):
    job = await tasks.run("nothing", recorder=NullRecorder())
    assert (job.reward, job.errors) == (0.0, [])
    (home / "mine.py").write_text(
        "def agent(run):\n    return 'strawberry'.count(run.task.args['letter'])\n"
    )
    assert (await tasks.run("mine.py", recorder=NullRecorder())).reward == 1.0


def no_arguments():
    return "3"


def two_arguments(messages, tools):
    return "3"


def a_generator(run):
    yield "3"


def with_a_keyword(run, *, retries):
    return "3"


class Plain:
    def __init__(self, run):
        self.run = run


class Unfinished(Agent):
    pass


class Demanding(Agent):
    def __init__(self, path):
        self.path = path

    async def __call__(self, run):
        return None


WRONG = [
    (None, "not a NoneType"),
    (3, "not an int"),
    ([whole_run], "not a list"),
    (no_arguments, r"takes \(run\), or \(messages, tools, trace\)"),
    (two_arguments, r"takes \(run\), or \(messages, tools, trace\)"),
    (lambda messages: messages[-1]["content"], r"takes \(messages\) alone"),
    (lambda trace, limit=3: "an answer", r"takes \(trace\) alone"),
    (with_a_keyword, "retries"),
    (a_generator, "generator"),
    (Plain, "Plain is a class"),
    (Unfinished, "Unfinished"),
    (Demanding, "Demanding"),
]


@pytest.mark.parametrize(("agent", "sentence"), WRONG, ids=[sentence for _, sentence in WRONG])
async def test_a_wrong_agent_is_refused_before_anything_is_recorded(tasks, agent, sentence):
    recorded = Recorded()
    with pytest.raises(UsageError, match=sentence):
        await tasks.run(agent, recorder=recorded)
    with pytest.raises(UsageError, match=sentence):
        await tasks[0].run(agent, recorder=recorded)
    with pytest.raises(UsageError, match=sentence):
        await rollout(tasks[0], agent, recorder=recorded)
    with pytest.raises(UsageError, match=sentence):
        Chat(tasks[0], agent, recorder=recorded)
    assert (recorded.jobs, recorded.runs) == ([], [])


async def test_an_open_job_gets_no_run_of_a_wrong_agent(tasks):
    recorded = Recorded()
    job = await Job.start("mine", recorder=recorded)
    with pytest.raises(UsageError):
        await tasks.run(two_arguments, job=job)
    assert (job.runs, recorded.runs) == ([], [])


@pytest.mark.slow
def test_a_misspelt_agent_is_suggested(home, capsys):
    assert hud_command(["eval", "env.py", "cluade"]) == 2
    assert "makes one. Did you mean the agent 'claude'?" in capsys.readouterr().err
    assert hud_command(["eval", "env.py", "another-model"]) == 2
    assert "Did you mean" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["evn.py", "worker.py"], "There is no file evn.py; did you mean env.py?"),
        (["env", "worker.py"], "Did you mean env.py?"),
        (["env.py", "wroker.py"], "There is no file wroker.py; did you mean worker.py?"),
        (["env.py", "worker"], "Did you mean the script worker.py?"),
    ],
)
def test_a_misspelt_file_is_suggested(home, capsys, arguments, sentence):
    (home / "worker.py").write_text("def agent(run):\n    return '1'\n")
    assert hud_command(["eval", *arguments]) == 2
    assert sentence in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["no_arguments", "a_generator", "Plain", "Demanding", "WRONG"])
def test_the_command_refuses_a_wrong_agent(home, capsys, name):
    (home / "mine.py").write_text("from tests.agents.test_agent_forms import *\n")
    assert hud_command(["eval", "env.py", f"mine.py:{name}", "--runtime", "local"]) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert hud_command(["jobs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def returning(value):
    def policy(messages, tools, trace):
        return value

    return policy


@pytest.mark.parametrize("value", [None, 3.5, {"name": "count"}, ["count"], []], ids=repr)
async def test_a_turn_of_another_type_ends_the_job_and_is_no_reward(tasks, value):
    job = await Job.start("mine", recorder=NullRecorder())
    with pytest.raises(UsageError, match="must return text, a ToolCall, a list of ToolCalls"):
        await tasks.run(returning(value), job=job)
    assert all(run.reward is None for run in job.runs)


async def test_a_script_of_the_run_that_returns_calls_is_told_how_to_call(tasks):
    def script(run):
        return [ToolCall(name="count", arguments=run.task.args)]

    with pytest.raises(UsageError, match="run.call_tool"):
        await tasks.run(script, recorder=NullRecorder())


async def test_a_completion_is_a_turn_still(tasks):
    def policy(messages, tools, trace):
        return Completion(content=str("strawberry".count(letter_of(messages))))

    assert (await tasks.run(policy, recorder=NullRecorder())).reward == 1.0


async def test_a_ready_agent_stays_itself(tasks):
    agent = Counting()
    job = await tasks.run(agent, recorder=NullRecorder())
    assert {id(run.live.agent) for run in job.runs} == {id(agent)}


async def test_a_class_of_the_package_needs_its_key_before_anything_is_recorded(tasks, monkeypatch):
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    for name in ("HUD_API_URL", "HUD_GATEWAY_URL", "HUD_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    recorded = Recorded()
    with pytest.raises(UsageError, match="ANTHROPIC_API_KEY"):
        await tasks.run(ClaudeAgent, recorder=recorded)
    assert recorded.jobs == []


async def test_a_function_is_refused_by_the_platform_before_anything_is_recorded(tasks):
    recorded = Recorded()
    with pytest.raises(UsageError, match="not code of this process"):
        await tasks.run(whole_run, runtime=HostedRuntime(), recorder=recorded)
    assert recorded.jobs == []


async def test_a_program_is_refused_by_the_platform_with_the_reason_and_the_cure(tasks):
    recorded = Recorded()
    program = as_agent("harness", {"command": "true", "model": "some-model"})
    with pytest.raises(UsageError, match="installed on their own machine.*without --remote"):
        await tasks.run(program, runtime=HostedRuntime(), recorder=recorded)
    assert recorded.jobs == []


@pytest.mark.parametrize("form", [two_arguments, 3], ids=["function", "number"])
async def test_a_wrong_subagent_is_refused_before_anything_is_recorded(tasks, form):
    agent = Counting()
    agent.subagents = {"clerk": form}
    recorded = Recorded()
    with pytest.raises(UsageError):
        await tasks.run(agent, recorder=recorded)
    assert recorded.jobs == []
