"""Whatever an agent gives, the run is measured, and what others record before and after it is stored."""

import asyncio
import time
import warnings
from contextlib import asynccontextmanager

import pytest

import hud.client
from hud import Environment
from hud.agents import ScriptedAgent
from hud.client.recording import MemoryRecorder
from hud.environment import Image
from hud.environment.channel import ControlServer
from hud.environment.channel.framing import MAX_FRAME_BYTES
from hud.errors import AgentFault, GraderFault
from hud.eval import Job, LocalRuntime, Runtime
from hud.eval.grade import Grade
from hud.eval.rollouts import rollout
from hud.trace import AgentStep, Sample, Step, ToolCall, ToolResult, ToolStep, Trace, Usage
from hud.trace.recording.journal import encode_event
from hud.trace.recording.recorder import NullRecorder

env = Environment("shop")


@env.tool
async def echo(value: dict) -> str:
    return "heard"


@env.template()
async def buy(item: str = "tea"):
    answer = yield f"What does {item} cost?"
    yield 1.0 if answer == "3" else 0.0


@env.template(returns=list[int])
async def count():
    answer = yield "Count."
    yield 1.0 if answer.content == [1, 2] else 0.0


def nested(depth):
    value = {}
    for _ in range(depth):
        value = {"a": value}
    return value


def assigns(value):
    def play(run):
        run.trace.content = value

    return play


def sets(name, value):
    def play(run):
        setattr(run.trace, name, value)
        run.trace.content = "3"

    return play


def records(make):
    def play(run):
        run.record(make())
        run.trace.content = "3"

    return play


def appends(run):
    run.trace.steps.append("no step")
    run.trace.content = "3"


def calls(arguments):
    async def play(run):
        await run.call_tool(ToolCall(id="1", name="echo", arguments=arguments))
        run.trace.content = "3"

    return play


def spends(name, value):
    usage = Usage()
    setattr(usage, name, value)
    return AgentStep(usage=usage)


AGENTS_FAULT = {
    "list": assigns([1]),
    "dictionary": assigns({"price": 3}),
    "number": assigns(3),
    "bytes": assigns(b"3"),
    "half a surrogate pair": assigns("3\ud800"),
    "200 MB": assigns("x" * 200_000_000),
    "a call nested without end": calls({"value": nested(100_000)}),
    "a long call": calls({"value": {"a": "x" * 20_000_000}}),
    "a recorded call nested without end": records(
        lambda: AgentStep(tool_calls=[ToolCall(id="1", name="echo", arguments=nested(100_000))])
    ),
    "status": sets("status", ["completed"]),
    "stop reason": sets("stop_reason", {"a": 1}),
    "extra": sets("extra", [1]),
    "an entry that is no step": appends,
    "a record that is no step": records(lambda: {"source": "agent"}),
    "usage": records(lambda: spends("prompt_tokens", "many")),
}


@asynccontextmanager
async def listening():
    server = ControlServer(env)
    sockets = await asyncio.start_server(server.connected, "127.0.0.1", 0, limit=MAX_FRAME_BYTES)
    yield Runtime(f"tcp://127.0.0.1:{sockets.sockets[0].getsockname()[1]}")
    sockets.close()
    await server.sessions.close()


@pytest.mark.slow
@pytest.mark.parametrize("where", ["local", "tcp"])
async def test_an_answer_that_cannot_be_carried_is_the_agents_failure(where):
    async with listening() as remote:
        runtime = LocalRuntime(env) if where == "local" else remote
        for name, play in AGENTS_FAULT.items():
            run = await rollout(
                buy(), ScriptedAgent(play), runtime=runtime, recorder=NullRecorder()
            )
            assert (run.failure_kind, run.reward) == ("agent", 0.0), (name, run.error)


@env.tool
async def picture(megabytes: int, times: int) -> list:
    return [Image(b"x" * (megabytes << 20))] * times


async def asks_for_much(run):
    result = await run.call_tool(
        ToolCall(id="1", name="picture", arguments={"megabytes": 8, "times": 4})
    )
    assert result.is_error == (run.live.connection.address != "local")
    run.trace.content = "3"


def says_it_is_repeated(run):
    run.trace.extra["retried_as"] = "f" * 32
    run.trace.content = "3"


def deep_extra(run):
    run.trace.extra["notes"] = nested(100_000)
    run.trace.content = "3"


def half_a_pair_in_a_step(run):
    run.record(AgentStep(content="\ud800", extra={"\udfff": 2**70}))
    run.trace.content = "3"


def long_steps(run):
    for _ in range(20):
        run.record(ToolStep(result=ToolResult.of_text("x" * 1_000_000)))
    run.trace.content = "3"


def many_steps(run):
    for _ in range(60_000):
        run.record(Step(source="system", error="x" * 250))
    run.trace.content = "3"


@pytest.mark.slow
@pytest.mark.parametrize("where", ["local", "tcp"])
async def test_what_an_agent_records_beside_its_answer_does_not_void_the_run(where):
    async with listening() as remote:
        runtime = LocalRuntime(env) if where == "local" else remote
        for play in (
            asks_for_much,
            says_it_is_repeated,
            deep_extra,
            half_a_pair_in_a_step,
            long_steps,
            many_steps,
        ):
            run = await rollout(
                buy(), ScriptedAgent(play), runtime=runtime, recorder=NullRecorder()
            )
            assert (run.failure_kind, run.reward) == (None, 1.0), (play.__name__, run.error)


@pytest.mark.parametrize(
    "answer", ["```\n" + "\n" * 2_000_000, "```" + " " * 3_000_000, "[" * 4_000_000]
)
async def test_an_answer_that_takes_long_to_read_is_read_at_once(answer):
    begun = time.monotonic()
    run = await rollout(
        count(), ScriptedAgent(assigns(answer)), runtime=LocalRuntime(env), recorder=NullRecorder()
    )
    assert (run.failure_kind, run.reward) == (None, 0.0)
    assert time.monotonic() - begun < 30  # It was hours.


async def test_another_makers_client_gets_a_grade_of_zero_for_such_an_answer():
    async with env.run() as run:
        await run.start("buy", {})
        frame = await run.grade("3\ud800", None)
    assert frame["score"] == 0.0
    assert "surrogate" in frame["content"]


def test_the_answer_is_checked_where_it_is_assigned():
    trace = Trace(trace_id="0" * 32)
    with pytest.raises(AgentFault, match=r"of type list; an answer is text.*json\.dumps"):
        trace.content = [1]
    trace.content = "3"
    assert trace.content == "3"


@pytest.mark.parametrize("score", ["0.5", [1], float("nan"), float("inf"), {"a": 1}])
def test_a_score_that_is_no_number_is_the_graders_fault(score):
    with pytest.raises(GraderFault, match="a score is a finite number"):
        Grade.from_dict({"score": score})


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    yield tmp_path
    hud.client.disconnect(tmp_path)


async def test_such_answers_are_stored_and_so_is_everything_after_them(home):
    for play in AGENTS_FAULT.values():
        job = await buy().run(ScriptedAgent(play))
        assert job.runs[0].reward == 0.0
    job = await buy().run(ScriptedAgent(assigns("3")))
    assert job.runs[0].reward == 1.0
    listed = (await hud.client.connect().get("/v2/jobs"))["items"]
    assert len(listed) == len(AGENTS_FAULT) + 1
    assert {one["status"] for one in listed} <= {"completed", "failed"}


def misuse(run):
    """What no assignment is there to check."""
    run.model = ["a", "model"]
    sample = Sample(prompt_token_ids=[1], output_token_ids=[2], output_logprobs=[0.0])
    sample.checkpoint, sample.output_token_ids = ["no", "id"], ["no", "token"]
    run.record(AgentStep(sample=sample, usage=Usage(prompt_tokens=2**70)))
    run.trace.content = "3"


async def test_what_is_not_checked_when_it_is_assigned_costs_itself_alone(home):
    with pytest.warns(UserWarning, match=r"could not be stored \(the tokens of step 3 of run"):
        job = await buy().run(ScriptedAgent(misuse))
    assert job.runs[0].reward == 1.0
    trace_id = job.runs[0].trace_id
    stored = await hud.client.connect().get(f"/v2/trace/{trace_id}/full")
    assert (stored["run"]["reward"], len(stored["trace"]["steps"])) == (1.0, 4)


async def test_a_poisoned_journal_of_a_process_that_died_holds_up_nothing(home):
    """Between lines that are good, lines that no column can hold, as older releases wrote them."""
    recorder = MemoryRecorder()
    job = await Job.start("left", recorder=recorder)
    run = await rollout(
        buy(),
        ScriptedAgent(assigns("3")),
        job_id=job.id,
        runtime=LocalRuntime(env),
        recorder=recorder,
    )
    good = recorder.take()
    ends = [
        b'{"content":["a","list"]}',
        b'{"content":{"a":1}}',
        b'{"model":["m"]}',
        b'{"turns":1e30}',
        b'{"unknown":1}',
        b'{"attempt":99999999999999999}',
        b'{"started_at":18446744073709551615}',
        b'{"slug":"' + b"\\u0000" * 10 + b'","checkpoint":7}',
    ]
    bad = [encode_event(b"E", f"{number:032x}", 0, end) for number, end in enumerate(ends)]
    (home / "journal").mkdir()
    journal = home / "journal" / "4194303-dead0000.journal"  # No process has that number.
    journal.write_bytes(b"".join([*bad[:3], good, *bad[3:]]))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        client = hud.client.connect()
        listed = (await client.get("/v2/jobs"))["items"]
    assert [(one["id"], one["runs"]) for one in listed] == [(job.id, 1)]
    assert (await client.get(f"/v2/trace/{run.trace_id}/full"))["run"]["reward"] == 1.0
    assert any(
        "the end of run 00000000000000000000000000000000" in str(one.message) for one in told
    )
    assert not journal.exists()
    kept = (home / "journal" / "damaged.lines").read_bytes()
    assert sorted(kept.splitlines(keepends=True)) == sorted(bad)
    assert (await buy().run(ScriptedAgent(assigns("3")))).runs[0].reward == 1.0
