"""A person plays: what is asked, what is shown, and what the trace holds of it."""

from __future__ import annotations

import asyncio
import json
import shlex
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.agents.servers.loopback import PNG

from hud.agents import HumanAgent
from hud.agents.human import arguments_of
from hud.environment import Environment
from hud.errors import UsageError
from hud.eval.rollouts import rollout
from hud.trace import ImageContent, TextContent, ToolResult
from hud.trace.recording.recorder import NullRecorder


class Person:
    """Types lines from a list, and remembers what was shown."""

    def __init__(self, *lines):
        self.lines = list(lines)
        self.shown = []
        self.patience = threading.Event()

    def ask(self, prompt):
        if not self.lines:
            raise EOFError
        line = self.lines.pop(0)
        if line is None:
            self.patience.wait(10)
            return "answer the red door"
        return line

    def agent(self, **more):
        return HumanAgent(ask=self.ask, say=self.shown.append, **more)


@pytest.fixture
def task(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    env = Environment("rooms")

    @env.tool
    async def look(where: str = "around", often: int = 1) -> str:
        """Look somewhere."""
        return f"{where} {often}: a door"

    @env.tool
    async def picture() -> ToolResult:
        """Take a picture."""
        image = ImageContent(data=PNG, mime_type="image/png")
        return ToolResult(content=[TextContent(text="here:"), image])

    @env.template()
    async def escape(prompt: str = "Get out."):
        """Find the way out."""
        answer = yield prompt
        yield float(answer == "the red door")

    return escape()


async def play(task, agent):
    return await rollout(
        task, agent, runtime=lambda task: task.environment.run(), recorder=NullRecorder()
    )


async def test_a_person_calls_tools_answers_and_is_graded(task):
    person = Person(
        'look where="up there" often=2', 'look {"where": "down"}', "answer the red door"
    )
    run = await play(task, person.agent())
    assert (run.reward, run.trace.stop_reason, run.model) == (1.0, "done", "human")
    assert "up there 2: a door" in person.shown
    assert "down 1: a door" in person.shown
    sources = [step.source for step in run.trace.steps]
    assert sources == ["task", "user", "agent", "tool", "agent", "tool", "agent", "task"]
    agents = [step for step in run.trace.steps if step.source == "agent"]
    assert agents[0].tool_calls[0].arguments == {"where": "up there", "often": 2}
    assert (agents[-1].content, agents[-1].done) == ("the red door", True)


async def test_what_cannot_be_read_is_said_and_nothing_is_recorded(task):
    lines = ["", "dance", "look up", 'look {"where"', "look where='", "tools", "prompt", "quit"]
    person = Person(*lines)
    run = await play(task, person.agent())
    shown = "\n".join(person.shown)
    assert "There is no 'dance' here." in shown
    assert "Write key=value, not 'up'." in shown
    assert "That is no JSON" in shown
    assert "That cannot be read" in shown
    assert shown.count("Get out.") == 2
    assert shown.count("look [where=] [often=]   Look somewhere.") == 2
    assert [step.source for step in run.trace.steps] == ["task", "user", "task"]
    assert run.reward == 0.0


async def test_pictures_are_kept_where_a_viewer_finds_them(task, tmp_path):
    person = Person("picture", "quit")
    await play(task, person.agent())
    (kept,) = tmp_path.glob("hud-*/1.png")
    assert kept.read_bytes().startswith(b"\x89PNG")
    assert any(str(kept) in line for line in person.shown)


async def test_an_end_of_input_ends_the_run(task):
    run = await play(task, Person().agent())
    assert (run.reward, run.trace.stop_reason) == (0.0, "done")


async def test_a_person_who_says_nothing_runs_out_of_time(task):
    person = Person(None)
    run = await play(task, person.agent(timeout_seconds=0.1))
    assert (run.trace.stop_reason, run.reward) == ("timeout", 0.0)


async def test_what_is_typed_after_a_runs_time_is_the_next_runs(task):
    person = Person(None)
    agent = person.agent(timeout_seconds=0.1)
    late = await play(task, agent)
    agent.timeout_seconds = None
    person.patience.set()
    found = await play(task, agent)
    assert (late.trace.stop_reason, found.reward) == ("timeout", 1.0)


async def test_answers_may_have_several_lines(task):
    run = await play(task, Person("answer", "a", "", "b ", ".").agent())
    assert run.content == "a\n\nb "


async def test_a_person_plays_one_run_at_a_time(task):
    person = Person("look", "answer the red door", "look", "answer the red door")
    agent = person.agent()
    runs = await asyncio.gather(play(task, agent), play(task, agent))
    assert [run.reward for run in runs] == [1.0, 1.0]
    prompts = [index for index, line in enumerate(person.shown) if line == "\nGet out.\n"]
    first_look = person.shown.index("around 1: a door")
    assert prompts[0] < first_look < prompts[1]


async def test_nobody_at_the_terminal_is_said_before_anything_starts(monkeypatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    with pytest.raises(UsageError, match="standard input is none"):
        await HumanAgent().prepare()


_NAMES = st.text("abcdefgh_", min_size=1)
_VALUES = st.one_of(
    st.integers(), st.booleans(), st.none(), st.lists(st.integers()), st.text("xyz ä'\"\\ \t")
)


@pytest.mark.slow
@given(st.dictionaries(_NAMES, _VALUES))
def test_what_is_quoted_as_a_shell_quotes_it_is_read_back(arguments):
    words = [shlex.quote(f"{name}={json.dumps(value)}") for name, value in arguments.items()]
    assert arguments_of(" ".join(words)) == arguments
    assert arguments_of(json.dumps(arguments)) == arguments
