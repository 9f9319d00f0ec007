"""Graders read a run's trace, and change nothing of what is recorded and trained on."""

import threading

import pytest

from hud import Environment
from hud.agents import ScriptedAgent
from hud.eval import LocalRuntime, Taskset
from hud.trace import AgentStep, Sample, ToolCall, Trace
from hud.trace.trace_copy import copied_trace


def sampled():
    sample = Sample(prompt_token_ids=[1], output_token_ids=[2, 3], output_logprobs=[-1.0, -2.0])
    call = ToolCall(id="1", name="use", arguments={"deep": [1]})
    return AgentStep(content="go", sample=sample, tool_calls=[call], extra={"state": {"a": 1}})


async def test_a_grader_that_changes_the_trace_changes_no_record():
    env = Environment("odd")

    @env.template()
    async def t():
        answer = yield "go"
        trace = answer.trace
        step = trace.steps[-1]
        step.sample.output_logprobs[0] = 0.0
        step.tool_calls[0].arguments["deep"].append(2)
        step.extra["state"]["a"] = 2
        trace.steps.clear()
        trace.content, trace.status = "better", "cancelled"
        yield 1.0

    async def play(run):
        run.record(sampled())
        return "mine"

    job = await Taskset("odd", [t()]).run(ScriptedAgent(play), runtime=LocalRuntime())
    (run,) = job.runs
    (step,) = [step for step in run.trace.steps if isinstance(step, AgentStep)]
    wanted = sampled()
    assert (step.sample, step.tool_calls, step.extra) == (
        wanted.sample,
        wanted.tool_calls,
        wanted.extra,
    )
    assert (run.trace.content, run.trace.status, run.reward) == ("mine", "completed", 1.0)


@pytest.mark.parametrize("extra", [{}, {"lock": threading.Lock()}])
def test_a_copy_is_equal_and_has_its_own_steps(extra):
    trace = Trace(steps=[sampled()], extra=extra)
    copied = copied_trace(trace)
    assert copied == trace
    assert copied.steps[0] is not trace.steps[0]
