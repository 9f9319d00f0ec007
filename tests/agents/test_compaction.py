"""Conversations that go on from a summary: the cut, the ids on both sides of it, and settings that refuse."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.agents.listed_model import Model, call, play, say

from hud.agents import ToolLoopAgent
from hud.agents.context_window import SUMMARIZE, with_text
from hud.agents.types import AgentConfig, OpenAIChatConfig
from hud.environment import Environment
from hud.errors import ContextOverflow
from hud.eval.rollouts import rollout
from hud.learning.datums import datums_of, payload_of
from hud.trace import AgentStep, Completion, Sample, SamplingParams, ToolCall, Usage
from hud.trace.chat_model import ChatModel
from hud.trace.recording.recorder import NullRecorder

WINDOW = 120


class Window(ChatModel):
    """A model in a window of `WINDOW` tokens, a character each; it looks around, and answers at the last turn.

    `lengths`: the tokens of each turn.
    """

    name = "narrow"

    def __init__(self, lengths, limit=WINDOW):
        self.lengths, self.limit = list(lengths), limit
        self.prompts = []

    async def complete(self, messages, tools, params, *, continuation=None, trace_id=None):
        covered = continuation.covered if continuation else 0
        prompt = list(continuation.token_ids) if continuation else []
        for message in messages[covered:]:
            prompt += [ord(letter) for letter in f"{message['role']}:{message['content']}"[:24]]
        if len(prompt) >= self.limit:
            raise ContextOverflow(f"The prompt has {len(prompt)} tokens.")
        self.prompts.append([message["content"] for message in messages])
        summarizes = str(messages[-1]["content"]).endswith(SUMMARIZE)
        drawn = 6 if summarizes else self.lengths.pop(0)
        ids = [500 + len(self.prompts)] * min(drawn, self.limit - len(prompt))
        calls = [] if summarizes or not self.lengths else [ToolCall(id="1", name="look")]
        return Completion(
            content="I looked." if summarizes else "door",
            tool_calls=calls,
            finish_reason="length" if len(ids) < drawn else "stop",
            usage=Usage(prompt_tokens=len(prompt), completion_tokens=len(ids)),
            sample=Sample(
                prompt_token_ids=prompt,
                output_token_ids=ids,
                output_logprobs=[-float(place + 1) for place in range(len(ids))],
            ),
        )


async def played(lengths, **config):
    env = Environment("rooms")

    @env.tool
    async def look() -> str:
        """Look around."""
        return "a door"

    @env.template()
    async def find():
        answer = yield "Find it."
        yield float(answer == "door")

    model = Window(lengths)
    agent = ToolLoopAgent(
        model, AgentConfig(max_steps=40, **config), SamplingParams(max_tokens=WINDOW)
    )
    run = await rollout(
        find(), agent, runtime=lambda t: t.environment.run(), recorder=NullRecorder()
    )
    return run, model


def turns(run):
    return [step for step in run.trace.steps if isinstance(step, AgentStep)]


def sequences(run):
    """Tokens, mask, logprobs and advantages of the run's datums."""
    payload = payload_of(run.trace, run.reward)
    return [
        [values.tobytes() for values in (d.tokens, d.mask, d.logprobs, d.advantages)]
        for d in datums_of(payload, advantage=0.5)
    ]


async def test_a_run_longer_than_its_window_goes_on_from_summaries_and_ends():
    run, _ = await played([10] * 20)
    assert (run.trace.stop_reason, len(turns(run))) == ("length", 6)
    run, model = await played([10] * 20, context_policy="compact", compact_at=55)
    assert (run.trace.stop_reason, run.reward) == ("done", 1.0)
    summaries = [step for step in turns(run) if "compaction" in step.extra]
    assert len(turns(run)) == 20 + len(summaries)
    assert run.trace.extra["compaction"] == len(summaries) > 3
    assert all(step.extra["compaction"]["tokens"] <= WINDOW for step in summaries)
    cut = model.prompts[turns(run).index(summaries[0]) + 1]
    assert cut == [
        "Find it.\n\nThe conversation so far was cut here. Your summary of it:\n\nI looked."
    ]


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(30, WINDOW))
async def test_segments_are_datums_with_the_ids_that_were_sampled(lengths, at):
    run, _ = await played(lengths, context_policy="compact", compact_at=at)
    payload = payload_of(run.trace, 1.0)
    datums = datums_of(payload, advantage=0.5, max_context=WINDOW)
    # A summary continues its segment: only the turns after one begin anew, and after turns that it lacks.
    lost = sum(step.extra.get("compaction", {}).get("lost_turns", 0) > 0 for step in turns(run))
    assert len(datums) <= 1 + run.trace.extra.get("compaction", 0) + lost
    sampled = [token for step in turns(run) for token in step.sample.output_token_ids]
    trained = [token for datum in datums for token in datum.tokens[datum.mask > 0].tolist()]
    assert sorted(trained) == sorted(sampled)
    for datum in datums:
        assert set(datum.advantages[datum.mask > 0].tolist()) == {0.5}
        for start, number in datum.turns:
            sample = payload.samples[number]
            assert datum.tokens[:start].tolist() == sample.prompt_token_ids
    assert sum(datum.share for datum in datums) == pytest.approx(1.0)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=4))
async def test_a_run_below_the_threshold_is_the_run_without_it(lengths):
    stopped, plain = await played(lengths)
    compacted, model = await played(lengths, context_policy="compact", compact_at=WINDOW)
    assert "compaction" not in compacted.trace.extra
    assert model.prompts == plain.prompts
    assert sequences(compacted) == sequences(stopped)


async def test_a_turn_that_fills_the_window_and_a_result_that_overflows_it_are_left_out_of_the_summary():
    run, model = await played([10, 300, 5], context_policy="compact", compact_at=1_000)
    cut = next(step for step in turns(run) if "compaction" in step.extra)
    assert (cut.extra["compaction"]["lost_turns"], run.reward) == (1, 1.0)
    assert "lacks the last 1 of your turns" in model.prompts[-1][0]


async def test_a_prompt_that_fills_the_window_ends_the_run(rooms):
    overflow = ContextOverflow("It is too long.")
    run = await play(rooms, Model(overflow), context_policy="compact", compact_at=10)
    assert (run.trace.stop_reason, run.trace.extra["context_overflow"]) == (
        "length",
        "It is too long.",
    )


async def test_a_summary_is_no_answer_and_its_calls_are_not_made(rooms):
    full = Usage(prompt_tokens=90, completion_tokens=10)
    summary = Completion(content="door", tool_calls=[ToolCall(id="9", name="look")])
    model = Model(call("look", usage=full), summary, say(None, refusal="no"))
    run = await play(rooms, model, context_policy="compact", compact_at=100)
    assert (run.trace.content, len(run.trace.tool_calls)) == (None, 1)


async def test_summaries_count_for_the_budget_of_the_run(rooms):
    full = Usage(prompt_tokens=90, completion_tokens=10)
    model = Model(call("look", usage=full), say("a room"), say("door"))
    run = await play(rooms, model, context_policy="compact", compact_at=100, total_steps=2)
    assert (run.trace.stop_reason, run.trace.content) == ("done", "a room")
    assert "compaction" not in run.trace.extra


async def test_another_model_summarizes_and_its_tokens_are_not_trained_on(rooms, monkeypatch):
    asked = []

    async def named(slug):
        asked.append(slug)
        return writer

    writer = Model(say("A summary.", sample=Sample(prompt_token_ids=[1], output_token_ids=[2])))
    monkeypatch.setattr("hud.agents.tool_loop.chat_model", named)
    own = Sample(prompt_token_ids=[1], output_token_ids=[2], output_logprobs=[-1.0])
    model = Model(
        call("look", usage=Usage(prompt_tokens=99, completion_tokens=1), sample=own), say("door")
    )
    run = await play(rooms, model, context_policy="compact", compact_at=100, compact_model="writer")
    assert (asked, run.reward) == (["writer"], 1.0)
    assert [step.sample for step in turns(run)] == [own, None, None]
    assert writer.asked[0][3] is None  # Another model's tokens are no prefix of its.


@pytest.mark.parametrize(
    "config",
    [
        {"context_policy": "compact"},
        {"compact_at": 100},
        {"context_policy": "drop_images", "compact_model": "m"},
    ],
)
def test_settings_that_do_not_go_together_are_refused(config):
    with pytest.raises(ValidationError, match="compact_at"):
        OpenAIChatConfig(**config)


async def test_a_task_asks_for_compaction_as_the_agents_do(rooms):
    rooms.agent_config = {"context_policy": "compact"}
    run = await play(rooms, Model(say("door")))
    assert "needs compact_at" in run.error


def test_text_joins_what_the_user_said_last():
    picture = {"type": "image_url", "image_url": {"url": "data:"}}
    assert with_text([], "a") == [{"role": "user", "content": "a"}]
    assert with_text([{"role": "user", "content": [picture]}], "a")[0]["content"] == [
        picture,
        {"type": "text", "text": "a"},
    ]
    assert with_text([{"role": "assistant", "content": "x"}], "a")[1]["content"] == "a"
