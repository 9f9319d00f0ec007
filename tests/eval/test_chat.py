"""Conversations over a task that takes messages, and functions that record themselves."""

from __future__ import annotations

import pytest

import hud
from hud import Chat, Environment, instrument
from hud.errors import UsageError
from hud.eval.rollouts import rollout
from hud.trace import TextContent
from hud.trace.recording.recorder import NullRecorder

env = Environment("assistant")


@env.template()
async def assistant(messages: list[dict]):
    yield messages
    yield 1.0


async def echo(run):
    run.trace.content = f"{len(run.prompt_messages)}: {run.prompt_messages[-1].text}"


async def test_every_turn_sees_the_whole_conversation():
    chat = Chat(assistant(messages=[]), echo, recorder=NullRecorder())
    assert (await chat.send("Book a flight")).content == "1: Book a flight"
    assert (await chat.send([TextContent(text="SFO to JFK")])).content == "3: SFO to JFK"
    assert [message["role"] for message in chat.messages] == ["user", "assistant"] * 2
    assert [run.job_id for run in chat.job.runs] == [chat.job.id] * 2


async def test_a_conversation_can_be_taken_up_again():
    chat = Chat(assistant(messages=[]), echo, recorder=NullRecorder())
    chat.messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hi."}]
    assert (await chat.send("And now?")).content == "3: And now?"


async def test_a_turn_that_fails_is_not_part_of_the_conversation():
    async def fails(run):
        raise ValueError("no model")

    chat = Chat(assistant(messages=[]), fails, recorder=NullRecorder())
    with pytest.raises(UsageError, match="no model"):
        await chat.send("Hello")
    assert chat.messages == []


async def test_instrumented_functions_leave_a_step_in_the_run_they_are_called_in():
    @instrument
    def double(x):
        return 2 * x

    @hud.instrument(name="looks up", record_args=False)
    async def look_up(secret):
        raise KeyError("gone")

    async def agent(run):
        run.trace.content = str(double(4))
        with pytest.raises(KeyError):
            await look_up("s3cret")

    run = await rollout(
        assistant(messages=[{"role": "user", "content": "Hi"}]), agent, recorder=NullRecorder()
    )
    spans = [step.extra["span"] for step in run.trace.steps if "span" in step.extra]
    assert spans[0]["name"].endswith("double")
    assert (spans[0]["arguments"], spans[0]["result"]) == ({"x": "4"}, "8")
    assert spans[1] == {"name": "looks up", "exception": "KeyError('gone')"}
    assert run.reward == 1.0
    assert run.trace.error is None


def test_an_instrumented_function_works_outside_runs():
    @instrument(record_result=False)
    def double(x):
        """Twice x."""
        return 2 * x

    assert double(4) == 8
    assert double.__doc__ == "Twice x."
