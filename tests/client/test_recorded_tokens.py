"""Recorded token for token: whatever the turns of a run shared, each is read back as it was sampled."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

import hud.client
from hud.platform.store import records
from hud.platform.store.tables import LOCAL_TEAM
from hud.trace import AgentStep, Sample, Step, new_id, parse_step

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
