"""Recorded token for token: whatever the turns of a run shared, each is read back as it was sampled."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

import hud.client
from hud import exact_json
from hud.client.recording import MemoryRecorder
from hud.trace import AgentStep, Sample, Step, new_id, parse_step
from hud.trace.recording.journal import decode_events
from hud_platform.store import records
from hud_platform.store.tables import LOCAL_TEAM

ids = st.lists(st.integers(0, 2**31 - 1), max_size=6)
logprob = st.floats(-50, 0, width=32)


@st.composite
def conversations(draw):
    """Turns that extend the one before, begin afresh, go back to an earlier one, or have no tokens at all."""
    steps, seen = [], [[]]
    for number in range(1, draw(st.integers(1, 6)) + 1):
        if draw(st.booleans()) and draw(st.booleans()):
            steps.append(Step(step_id=number, source="user"))
            continue
        prompt = draw(st.sampled_from(seen)) + draw(ids)
        output = draw(ids)
        seen.append(prompt + output)
        sample = Sample(
            prompt_token_ids=prompt,
            output_token_ids=output,
            output_logprobs=[draw(logprob) for _ in output],
            prompt_chunks=draw(st.sampled_from([None, [{"type": "image", "data": "aGk="}]])),
            checkpoint=draw(st.sampled_from([None, "c" * 32])),
            temperature=draw(st.sampled_from([1.0, 0.5])),
            excluded=draw(st.sampled_from([None, "side_call", "superseded"])),
        )
        steps.append(AgentStep(step_id=number, content="hm", sample=sample))
    return steps


def test_samples_come_back_as_they_were(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    recorder = hud.client.recorder()
    store = hud.client.connect().embedded.parts.store

    @settings(max_examples=60, deadline=None)
    @given(conversations())
    def round_trip(steps):
        trace_id = new_id()
        for step in steps:
            recorder.step_recorded(trace_id, step)
        asyncio.run(recorder.flush())
        assert [
            parse_step(step) for step in records.trace_steps(store, LOCAL_TEAM, trace_id)
        ] == steps

    round_trip()
    hud.client.disconnect(tmp_path)


def test_turns_of_agents_that_interleave_are_stored_as_differences_to_their_own():
    recorder = MemoryRecorder()
    prompts = [[1], [7, 8], [1, 2, 3], [7, 8, 2, 9], [1, 2, 4]]
    for number, prompt in enumerate(prompts, 1):
        sample = Sample(prompt_token_ids=prompt, output_token_ids=[2], output_logprobs=[-1.0])
        recorder.step_recorded("a" * 32, AgentStep(step_id=number, sample=sample))
    events = [event for event in decode_events(recorder.take()) if event.kind == b"T"]
    stored = [exact_json.loads(event.payload) for event in events]
    assert [sample["extends"] for sample in stored] == [None, None, 1, 2, None]
    assert [sample["prompt"] for sample in stored] == [[1], [7, 8], [3], [9], [1, 2, 4]]
