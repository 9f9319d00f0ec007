"""Prompts of consecutive calls begin with the ids of the call before in every program that keeps its history."""

import httpx
import pytest
from tests.platform.gateway.program_conversations import PROGRAMS, TASK, MessagesProgram
from tests.platform.gateway.scripted_server import ScriptedTurn, scripted_server

from hud.learning.datums import datums_of, payload_of
from hud.trace import Trace, new_id, parse_step
from hud.trace.sampled.call_samples import expand_samples

TURNS = [
    ScriptedTurn(f"Thought {number}.", "I edit.", "edit", {"path": f"{number}.py"})
    for number in range(3)
] + [ScriptedTurn("It passed.", "Done.")]


def opened(url):
    asked = {"trace_id": new_id(), "model": "scripted"}
    return httpx.post(f"{url}/v1/run-passes", json=asked).raise_for_status().json()


def ended(url, run):
    path = f"{url}/v1/run-passes/{run['id']}/end"
    result = httpx.post(path, json={"token": run["token"]}, timeout=30).raise_for_status().json()
    trace = Trace(steps=[parse_step(step) for step in expand_samples(result["steps"])])
    return trace, result["metrics"]


def played(url, key, program):
    """Play the script to its end; the key is sent as each dialect takes it."""
    headers = {"authorization": f"Bearer {key}", **program.session}
    for number in range(len(TURNS)):
        body = {"model": "scripted", **program.body}
        answer = httpx.post(url + program.path, json=body, headers=headers, timeout=60)
        assert answer.status_code == 200, answer.text
        if number + 1 < len(TURNS):
            program.go_on(answer.json())


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_calls_of_a_run_are_one_datum(tmp_path, program):
    with scripted_server(tmp_path, TURNS, TASK) as (url, model):
        run = opened(url)
        played(url, run["key"], program())
        trace, metrics = ended(url, run)
    (datum,) = datums_of(payload_of(trace, 1.0))
    assert model.extended() == (3, 3)
    prompt, output = model.prompts[-1]
    assert datum.tokens.tolist() == prompt + output
    assert datum.actions == sum(len(output) for _, output in model.prompts)
    assert metrics["continued"] == 3
    agent = [step for step in trace.steps if step.source == "agent"]
    assert [step.extra.get("session", {}) for step in agent] == [program.session] * 4
    expected = {"defaults": 3} if program is MessagesProgram else metrics["rewrites"]
    assert metrics["rewrites"] == expected
