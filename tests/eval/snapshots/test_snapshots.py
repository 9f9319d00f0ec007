"""A run that goes on from a snapshot: files, conversation and exact tokens as they were, the reward once."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hud.agents.tool_loop import ToolLoopAgent
from hud.agents.types import OpenAIChatConfig
from hud.environment import Environment
from hud.environment.run import EnvironmentRun
from hud.errors import EnvironmentFault, InfrastructureFault, UsageError
from hud.eval import Run
from hud.eval.episode import attempt
from hud.eval.runtimes.local import LocalRuntime
from hud.eval.snapshots.run_snapshot import RunSnapshot, StepLines
from hud.eval.snapshots.snapshots import KEY, Snapshots
from hud.trace import AgentStep, Completion, Message, Sample, Step, ToolCall, Trace, Usage

pytestmark = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="there is no bubblewrap here: scripts/setup-worlds"
)
STEPS = 6


def environment(**options):
    env = Environment("count")
    options.setdefault("snapshots", True)
    shell = env.workspace(**options)

    @env.template()
    async def count(steps: int = STEPS, prompt: str = "Count."):
        await shell.write("start.txt", "begun")
        answer = yield prompt
        lines = (await shell.read("count.txt")).decode().split()
        yield float(lines == [str(n) for n in range(steps)] and answer == "done")

    return env, shell, count


class Counter:
    """A model that counts in a file, one number a turn, by the conversation that it gets; `dies_at` ends the attempt."""

    name = "counter"

    def __init__(self, dies_at=None):
        self.dies_at = dies_at
        self.prompts = []

    async def complete(self, messages, tools, params, *, continuation=None, trace_id=None):
        turn = sum(message["role"] == "assistant" for message in messages)
        if turn == self.dies_at:
            raise InfrastructureFault("The machine is gone.")
        before = [] if continuation is None else continuation.token_ids
        prompt = [*before, 100 + turn]
        self.prompts.append(prompt)
        sample = Sample(
            prompt_token_ids=prompt,
            output_token_ids=[turn, 7],
            output_logprobs=[-0.5, -0.25],
            checkpoint="c",
        )
        calls = []
        if turn < STEPS:
            command = f"echo {turn} >> count.txt; cat start.txt"
            calls = [ToolCall(id=str(turn), name="bash", arguments={"command": command})]
        return Completion(
            content="done" if turn == STEPS else None,
            tool_calls=calls,
            sample=sample,
            usage=Usage(prompt_tokens=len(prompt), completion_tokens=2),
        )

    async def aclose(self):
        pass


class Kept:
    """The last snapshot, as a platform keeps it."""

    def __init__(self):
        self.data, self.count = None, 0

    async def keep(self, data):
        self.data, self.count = data, self.count + 1

    async def last(self):
        return self.data


async def play(task, model, kept, **config):
    run = Run(task=task)
    run.live.snapshots = Snapshots(kept)
    agent = ToolLoopAgent(model, OpenAIChatConfig(model="counter", max_steps=20, **config))
    await attempt(run, agent, LocalRuntime(), 120, last=True)
    return run


@pytest.fixture(autouse=True)
def every_step(monkeypatch):
    monkeypatch.setattr("hud.eval.snapshots.snapshots.COST_SHARE", 1.0)


async def test_a_lost_run_goes_on_after_its_last_step_with_the_same_tokens():
    _, _, count = environment()
    whole = await play(count(), Counter(), Kept())
    assert (whole.reward, whole.error) == (1.0, None)
    kept = Kept()
    lost = await play(count(), Counter(dies_at=3), kept)
    assert (lost.failure_kind, kept.count) == ("infrastructure", 3)
    model = Counter(dies_at=5)
    await play(count(), model, kept)
    assert len(model.prompts) == 2
    model = Counter()
    again = await play(count(), model, kept)
    assert (again.reward, again.error) == (1.0, None)
    assert len(model.prompts) == 2
    samples = lambda run: [step.sample for step in run.trace.steps if isinstance(step, AgentStep)]  # noqa: E731
    assert samples(again) == samples(whole)
    assert [step.source for step in again.trace.steps] == [
        step.source for step in whole.trace.steps
    ]
    assert [step.step_id for step in again.trace.steps] == list(
        range(1, len(again.trace.steps) + 1)
    )
    assert again.trace.usage == whole.trace.usage
    assert again.trace.extra[KEY]["resumed_after_steps"] == [8, 12]
    # The shell's state is gone, and the agent is told once.
    told = [
        "The machine was replaced" in step.result.text
        for step in again.trace.steps
        if step.source == "tool"
    ]
    assert told == [False, False, False, True, False, True]


async def test_a_run_of_another_setup_begins_anew_and_says_so():
    _, _, count = environment()
    kept = Kept()
    await play(count(prompt="Count."), Counter(dies_at=3), kept)
    model = Counter()
    run = await play(count(prompt="Count slowly."), model, kept)
    assert run.reward == 1.0
    assert len(model.prompts) == STEPS + 1
    assert run.trace.extra[KEY]["begun_anew"] == "its task's setup gave another prompt"


@pytest.mark.parametrize("data", [b"", b"{}", b"nonsense", b'{"version": 9}\n'])
async def test_a_damaged_snapshot_begins_anew_and_says_so(data):
    _, _, count = environment()
    kept = Kept()
    kept.data = data
    run = await play(count(), Counter(), kept)
    assert run.reward == 1.0
    assert "cannot be read" in run.trace.extra[KEY]["begun_anew"]


async def test_files_that_cannot_be_restored_break_the_attempt_and_the_next_begins():
    _, _, count = environment()
    kept = Kept()
    await play(count(), Counter(dies_at=2), kept)
    snapshot = RunSnapshot.decode(kept.data)
    broken = replace(snapshot, parts={"shell": b"no archive"})
    kept.data = broken.encode(StepLines("t").of(snapshot.steps))
    run = await play(count(), Counter(), kept)
    assert (run.failure_kind, kept.data) == ("infrastructure", None)
    assert "could not be restored: its archive is damaged" in run.error
    assert (await play(count(), Counter(), kept)).reward == 1.0


async def test_what_has_state_elsewhere_is_refused_by_name():
    env, _, count = environment()
    env.workspace(name="scratch")
    run = await play(count(), Counter(), Kept())
    assert run.reward == 1.0
    assert run.trace.extra[KEY] == {"refused": "'scratch' (Workspace) has no snapshots"}

    env, _, count = environment()

    @env.tool()
    def remember(word: str) -> str:
        """Remember a word."""
        env.state.word = word
        return word

    class Remembering(Counter):
        async def complete(self, messages, tools, params, **context):
            completion = await super().complete(messages, tools, params, **context)
            completion.tool_calls = completion.tool_calls + [
                ToolCall(id="r", name="remember", arguments={"word": "x"})
            ] * bool(completion.tool_calls)
            return completion

    kept = Kept()
    run = await play(count(), Remembering(), kept)
    assert run.reward == 1.0
    assert run.trace.extra[KEY] == {"refused": "env.state has changed since the task's setup"}
    assert kept.count == 0


async def test_a_state_without_a_text_is_refused_and_fails_no_run():
    env, _, count = environment()

    @env.initialize
    async def start():
        env.state.huge = 10**5000

    kept = Kept()
    run = await play(count(), Counter(), kept)
    assert run.reward == 1.0, run.error
    assert "values without a text" in run.trace.extra[KEY]["refused"]
    assert kept.count == 0


async def test_an_archive_that_cannot_be_sent_costs_the_run_nothing(monkeypatch):
    async def too_long(self):
        raise EnvironmentFault("run.snapshot: the answer has too many bytes.")

    monkeypatch.setattr(EnvironmentRun, "snapshot", too_long)
    _, _, count = environment()
    run = await play(count(), Counter(), Kept())
    assert run.reward == 1.0
    assert run.trace.extra[KEY] == {"refused": "run.snapshot: the answer has too many bytes."}


async def test_without_the_declaration_nothing_is_kept():
    _, _, count = environment(snapshots=False)
    kept = Kept()
    run = await play(count(), Counter(), kept)
    assert (run.reward, kept.count, KEY in run.trace.extra) == (1.0, 0, False)


async def test_limits_of_turns_hold_over_all_attempts():
    _, _, count = environment()
    kept = Kept()
    await play(count(), Counter(dies_at=3), kept, total_steps=5)
    run = await play(count(), Counter(), kept, total_steps=5)
    assert run.trace.stop_reason == "max_steps"
    assert run.trace.usage.llm_call_count == 5


def test_a_restart_command_goes_with_snapshots():
    with pytest.raises(UsageError, match="restart command goes with snapshots=True"):
        Environment("e").workspace(restart="true")
    with pytest.raises(UsageError, match="container image has no snapshots"):
        Environment("e").workspace(snapshots=True, image=object())


@given(st.data())
def test_steps_with_their_exact_tokens_survive_encoding(data):
    """Whatever prompts continue, branch or begin anew: ids, log-probabilities and steps are equal."""
    ids = st.lists(st.integers(0, 2**31), max_size=6)
    steps, sequences = Trace(), [[]]
    lines = StepLines("t")
    for number in range(data.draw(st.integers(1, 8))):
        if data.draw(st.booleans()):
            steps.record(Step(source="user", messages=[Message(content=data.draw(st.text()))]))
        prompt = data.draw(st.sampled_from(sequences)) + data.draw(ids)
        output = data.draw(ids)
        sample = Sample(
            prompt_token_ids=prompt,
            output_token_ids=output,
            output_logprobs=[-0.1 * number] * len(output),
            checkpoint=data.draw(st.sampled_from([None, "c"])),
            temperature=data.draw(st.sampled_from([1.0, 0.5])),
        )
        steps.record(AgentStep(content=data.draw(st.text()), sample=sample))
        sequences.append(prompt + output)
        encoded = lines.of(steps.steps)
    snapshot = RunSnapshot(steps.steps, {"turns": 3}, {"shell": b"\x00\xff"}, "so far", {"a": 1})
    decoded = RunSnapshot.decode(snapshot.encode(encoded))
    assert decoded.steps == steps.steps
    assert (decoded.agent, decoded.parts) == ({"turns": 3}, {"shell": b"\x00\xff"})
    assert (decoded.content, decoded.extra) == ("so far", {"a": 1})
