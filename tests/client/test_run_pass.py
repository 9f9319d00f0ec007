"""Run passes on the embedded platform: programs reach the run's model over a loopback address, and their calls are its steps."""

import asyncio
import json
import threading

import anthropic
import httpx
import openai
import pytest
import sqlalchemy as sa
from google import genai
from google.genai import errors
from tests.platform.gateway.gateway_server import SIZES, TEXTS, ScriptedEngine

from hud.client import connect, disconnect
from hud.client.run_pass import RunLimits, run_pass
from hud.environment import Environment
from hud.errors import AgentFault, RefusedError, StoreAwayError
from hud.learning.datums import datums_of, payload_of
from hud.trace import AgentStep, SamplingParams, ToolStep
from hud_platform.gateway.chat_formats import format_of
from hud_platform.store import tables
from hud_platform.store.records import samples_of

HELLO = [{"role": "user", "content": "hello"}]
LOOK = {"type": "object", "properties": {"at": {"type": "integer"}}}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": LOOK}}]
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": 3}}\n</tool_call>'

env = Environment("numbers")


@env.template()
async def count(wanted: str = "some words"):
    answer = yield "Say some words."
    yield 1.0 if wanted in (answer or "") else 0.0


@pytest.fixture
def platform(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    parts = connect().embedded.parts
    record = parts.registry.of("0" * 32).create("tiny", TEXTS, sizes=SIZES)
    parts.tokenizer = format_of(record.folder).chat.tokenizer
    script(parts, "some words")
    yield parts
    disconnect(tmp_path)


def script(parts, *texts, **options):
    engine = parts.__dict__["engine"] = ScriptedEngine(parts.tokenizer, *texts, **options)
    return engine


async def played(program, *, task=None, **options):
    """Play a run by a function that gets the access of its pass."""

    async def agent(run):
        async with run_pass(run, model="tiny", **options) as access:
            run.trace.content = await program(access)

    job = await (task or count()).run(agent)
    return job.runs[0]


def agent_steps(run):
    return [step for step in run.trace.steps if isinstance(step, AgentStep)]


async def chat(access, **fields):
    client = openai.AsyncOpenAI(base_url=access.base_url, api_key=access.key, max_retries=0)
    async with client:
        body = {"model": "gpt-anything", "messages": HELLO, **fields}
        answer = await client.chat.completions.create(**body)
        return answer.choices[0].message


async def chat_stream(access):
    client = openai.AsyncOpenAI(base_url=access.base_url, api_key=access.key)
    async with client:
        stream = await client.chat.completions.create(model="x", messages=HELLO, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


async def responses(access):
    client = openai.AsyncOpenAI(base_url=access.base_url, api_key=access.key)
    async with client:
        return (await client.responses.create(model="o9", input="hello")).output_text


async def responses_stream(access):
    client = openai.AsyncOpenAI(base_url=access.base_url, api_key=access.key)
    async with client:
        stream = await client.responses.create(model="o9", input="hello", stream=True)
        return [event async for event in stream][-1].response.output_text


async def messages(access):
    client = anthropic.AsyncAnthropic(base_url=access.base_url, api_key=access.key)
    async with client:
        answer = await client.messages.create(model="claude-x", messages=HELLO, max_tokens=50)
        return answer.content[0].text


async def messages_stream(access):
    client = anthropic.AsyncAnthropic(base_url=access.base_url, api_key=access.key)
    async with client:
        call = client.messages.stream(model="claude-x", messages=HELLO, max_tokens=50)
        async with call as stream:
            return await stream.get_final_text()


async def gemini(access):
    client = genai.Client(api_key=access.key, http_options={"base_url": access.base_url})
    answer = await client.aio.models.generate_content(model="gemini-x", contents="hello")
    return answer.text


async def gemini_stream(access):
    client = genai.Client(api_key=access.key, http_options={"base_url": access.base_url})
    stream = await client.aio.models.generate_content_stream(model="gemini-x", contents="hello")
    return "".join([chunk.text or "" async for chunk in stream])


async def completions(access):
    client = openai.AsyncOpenAI(base_url=access.base_url, api_key=access.key)
    async with client:
        return (await client.completions.create(model="x", prompt="hello")).choices[0].text


DIALECTS = [
    chat_stream,
    responses,
    responses_stream,
    messages,
    messages_stream,
    gemini,
    gemini_stream,
    completions,
]


@pytest.mark.parametrize("program", DIALECTS, ids=lambda program: program.__name__)
async def test_a_call_in_any_dialect_is_a_step_with_its_sample(platform, program):
    engine = script(platform, "some words")
    run = await played(program)
    assert run.reward == 1.0, run.error
    (step,) = agent_steps(run)
    assert step.content == "some words"
    assert step.model == "tiny"
    asked = engine.asked[0][2]
    assert step.sample.prompt_token_ids == list(asked.prompt)
    assert step.sample.output_token_ids == engine.turns[0]
    assert step.sample.output_logprobs == [-0.5] * len(engine.turns[0])
    assert step.sample.checkpoint == "c" * 32


async def test_steps_are_in_the_store_once_and_in_the_trace(platform):
    async def program(access):
        await chat(access)
        return (await chat(access)).content

    run = await played(program)
    await run.recorder.flush()
    client = connect()
    stored = (await client.get(f"/v2/trace/{run.trace_id}/full"))["trace"]["steps"]
    assert [step["source"] for step in stored] == [step.source for step in run.trace.steps]
    kept = [step["sample"]["output_token_ids"] for step in stored if step["source"] == "agent"]
    assert kept == [step.sample.output_token_ids for step in agent_steps(run)]
    assert len(kept) == 2


async def test_results_of_tools_are_steps_by_the_id_of_their_call(platform):
    script(platform, CALL, "some words")

    async def program(access):
        turn = await chat(access, tools=TOOLS)
        (call,) = turn.tool_calls
        said = {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]}
        result = {"role": "tool", "tool_call_id": call.id, "content": "three apples"}
        later = [*HELLO, said, result]
        await chat(access, tools=TOOLS, messages=later)
        return (await chat(access, tools=TOOLS, messages=later)).content

    run = await played(program)
    played_steps = [step for step in run.trace.steps if isinstance(step, AgentStep | ToolStep)]
    assert [step.source for step in played_steps] == ["agent", "tool", "agent", "agent"]
    assert played_steps[1].call == played_steps[0].tool_calls[0]
    assert played_steps[1].result.text == "three apples"
    assert played_steps[1].call.arguments == {"at": 3}


async def test_what_cannot_be_trained_on_is_overridden_and_counted(platform):
    engine = script(platform, "some words")

    async def program(access):
        await chat(access, top_p=0.5, temperature=0, tools=TOOLS, tool_choice="required")
        answer = await chat(access, max_tokens=30, response_format={"type": "json_object"})
        return answer.content

    sampling = SamplingParams(max_tokens=20, seed=7)
    run = await played(program, sampling=sampling)
    first, second = (asked[2] for asked in engine.asked)
    assert (first.params.top_p, first.params.temperature) == (None, 1.0)
    assert (first.grammar, second.grammar) == (None, None)
    assert first.params.max_tokens == second.params.max_tokens == 20
    assert first.params.seed != second.params.seed
    assert all(step.sample is not None for step in agent_steps(run))
    assert run.trace.extra["model_calls"]["overridden"] == {
        "top_p": 1,
        "temperature": 1,
        "tool_choice": 1,
        "max_tokens": 1,
        "format": 1,
    }


async def test_calls_are_attributed_by_the_pass_alone(platform):
    async def program(access):
        client = openai.AsyncOpenAI(
            base_url=access.base_url, api_key=access.key, default_headers={"trace-id": "f" * 32}
        )
        async with client:
            await client.chat.completions.create(model="x", messages=HELLO)

    run = await played(program)
    platform.gateway.ledger.flush()
    rows = platform.store.rows(sa.select(tables.requests))
    assert [(row.trace_id, row.model) for row in rows] == [(run.trace_id, "tiny")]


async def test_side_calls_go_to_the_frozen_model_and_have_no_sample(platform):
    platform.registry.of("0" * 32).create("small", TEXTS, sizes=SIZES)

    async def program(access):
        await chat(access, model="some-mini")
        await chat(access, model="small")
        return (await chat(access, model="some-large")).content

    run = await played(program, side_model="small", side_names=["some-mini"])
    assert [step.model for step in agent_steps(run)] == ["small", "small", "tiny"]
    assert [step.sample is not None for step in agent_steps(run)] == [False, False, True]


async def test_side_calls_without_a_model_of_their_own_are_answered_by_the_runs_and_have_no_sample(
    platform,
):
    async def program(access):
        await chat(access, model="some-mini")
        return (await chat(access, model="some-large")).content

    run = await played(program, side_names=["some-mini"])
    assert [step.model for step in agent_steps(run)] == ["tiny", "tiny"]
    assert [step.sample is not None for step in agent_steps(run)] == [False, True]


async def test_a_pass_opens_the_calls_of_its_run_and_nothing_else(platform):
    seen = {}

    async def program(access):
        headers = {"authorization": f"Bearer {access.key}"}
        async with httpx.AsyncClient(base_url=access.base_url) as client:
            for path in ("/v2/jobs", "/v2/models", "/v1/secrets", "/", "/v2/trace/" + "a" * 32):
                seen[path] = (await client.get(path, headers=headers)).status_code
            body = {"trace_id": "a" * 32, "model": "tiny"}
            seen["open"] = (
                await client.post("/v1/run-passes", json=body, headers=headers)
            ).status_code
            rows = platform.store.rows(sa.select(tables.run_passes.c.id))
            end = await client.post(
                f"/v1/run-passes/{rows[0].id}/end", json={"token": "x"}, headers=headers
            )
            seen["end"] = end.status_code
            seen["none"] = (await client.get("/v1/models")).status_code
            seen["other key"] = (
                await client.get("/v1/models", headers={"authorization": "Bearer hud_x"})
            ).status_code
            listed = (await client.get("/v1/models", headers=headers)).json()
            seen["listed"] = [model["id"] for model in listed["data"]]

    await played(program)
    assert seen.pop("none") == seen.pop("other key") == 401
    assert seen.pop("listed") == ["tiny"]
    assert set(seen.values()) == {403}


async def test_a_stored_response_is_its_runs_alone(platform):
    kept = []

    async def program(access):
        client = openai.AsyncOpenAI(base_url=access.base_url, api_key=access.key)
        async with client:
            if kept:
                with pytest.raises(openai.NotFoundError):
                    await client.responses.retrieve(kept[0])
                with pytest.raises(openai.NotFoundError):
                    await client.responses.create(
                        model="x", input="more", previous_response_id=kept[0]
                    )
                return "some words"
            answer = await client.responses.create(model="x", input="hello")
            again = await client.responses.create(
                model="x", input="more", previous_response_id=answer.id
            )
            kept.append(again.id)
            return answer.output_text

    assert (await played(program)).reward == 1.0
    second = await played(program)
    # Its own request for what is not there is a refusal of the platform's.
    assert second.failure_kind == "infrastructure"


async def test_after_the_end_calls_are_refused_and_what_is_sampled_is_cancelled(platform):
    sampling = threading.Event()

    async def forever():
        sampling.set()
        await asyncio.sleep(60)

    engine = script(platform, "some words", then=forever)
    kept = []

    async def program(access):
        call = asyncio.create_task(chat(access))
        kept.extend((access, call))
        assert await asyncio.to_thread(sampling.wait, 20)
        return "some words"

    async def outside(run):
        # Another pass keeps the address open after the first one has ended.
        async with run_pass(run, model="tiny"):
            async with run_pass(run, model="tiny") as access:
                run.trace.content = await program(access)
            with pytest.raises(openai.ConflictError):
                await kept[1]
            with pytest.raises(openai.ConflictError, match="has ended"):
                await chat(kept[0])

    job = await count().run(outside)
    run = job.runs[0]
    assert (run.reward, run.failure_kind) == (1.0, None)
    assert engine.closed == 1
    assert agent_steps(run) == []


async def test_the_end_of_the_program_is_its_own_failure(platform):
    async def program(access):
        await chat(access)
        raise AgentFault("The program exited with status 1.")

    run = await played(program)
    assert (run.failure_kind, run.reward) == ("agent", 0.0)
    assert len(agent_steps(run)) == 1


async def test_limits_refuse_and_end_the_run_as_a_limit_does(platform):
    async def program(access):
        await chat(access)
        with pytest.raises(openai.PermissionDeniedError, match="1 model calls"):
            await chat(access)
        raise AgentFault("The program exited with status 1.")

    run = await played(program, limits=RunLimits(calls=1))
    assert (run.failure_kind, run.trace.stop_reason) == (None, "max_steps")
    assert run.reward == 0.0


async def test_a_failure_of_the_engine_is_infrastructure(platform):
    async def fail():
        raise RuntimeError("the engine broke")

    script(platform, "some words", then=fail)

    async def program(access):
        with pytest.raises(openai.InternalServerError):
            await chat(access)
        return "no words"

    run = await played(program)
    assert (run.failure_kind, run.reward) == ("infrastructure", None)


async def test_a_failure_that_the_program_overcame_is_none(platform):
    script(platform, "some words", then=Once(RuntimeError("broken")))

    async def program(access):
        with pytest.raises(openai.InternalServerError):
            await chat(access)
        return (await chat(access)).content

    run = await played(program)
    assert (run.failure_kind, run.reward) == (None, 1.0)


class Once:
    """A function that raises an error the first time that it is called."""

    def __init__(self, error):
        self.error = error

    async def __call__(self):
        error, self.error = self.error, None
        if error is not None:
            raise error


async def test_a_full_context_ends_the_run_as_length(platform):
    async def program(access):
        long = [{"role": "user", "content": "look at item " * 400}]
        with pytest.raises(openai.BadRequestError) as refused:
            await chat(access, messages=long)
        assert json.loads(refused.value.response.text)["error"]["code"] == "context_length_exceeded"
        raise AgentFault("The program exited with status 1.")

    # The engine refuses prompts that leave no room.
    platform.__dict__.pop("engine")
    run = await played(program)
    assert (run.failure_kind, run.trace.stop_reason) == (None, "length"), run.error
    assert run.reward == 0.0


async def test_a_pass_for_an_unknown_model_ends_the_job(platform):
    async def agent(run):
        async with run_pass(run, model="absent"):
            raise AssertionError("unreachable")

    with pytest.raises(RefusedError, match="absent"):
        await count().run(agent)


async def test_calls_that_their_program_abandons_count_against_its_limits(platform):
    script(platform, "some words that go on and on " * 3, then=lambda: asyncio.sleep(30))

    async def program(access):
        with pytest.raises(openai.APITimeoutError):
            await chat(access, timeout=1)
        for _ in range(100):
            if not platform.store.rows(UNSETTLED):
                break
            await asyncio.sleep(0.05)
        with pytest.raises(openai.PermissionDeniedError, match="may sample 5 tokens"):
            await chat(access)
        return "some words"

    run = await played(program, limits=RunLimits(tokens=5))
    assert run.trace.extra["model_calls"]["gone"] == 1
    assert run.trace.stop_reason == "length"


UNSETTLED = sa.select(tables.run_calls.c.number).where(tables.run_calls.c.status == "open")


@pytest.mark.parametrize(
    ("program", "refused"),
    [
        (chat, openai.PermissionDeniedError),
        (chat_stream, openai.PermissionDeniedError),
        (responses, openai.PermissionDeniedError),
        (messages, anthropic.PermissionDeniedError),
        (messages_stream, anthropic.PermissionDeniedError),
        (gemini, errors.ClientError),
        (gemini_stream, errors.ClientError),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_a_limit_is_refused_in_the_words_of_each_dialect(platform, program, refused):
    async def limited(access):
        with pytest.raises(refused, match="may make 0 model calls"):
            await program(access)

    run = await played(limited, limits=RunLimits(calls=0))
    assert run.trace.stop_reason == "max_steps"


@pytest.mark.parametrize(
    "error",
    [StoreAwayError("The platform's database does not answer now."), RuntimeError("a fault")],
    ids=["away", "broken"],
)
async def test_what_fails_when_a_call_arrives_is_infrastructure(platform, monkeypatch, error):
    store = platform.gateway.runs.store
    begin = store.begin

    def away(*arguments):
        raise error

    async def program(access):
        monkeypatch.setattr(store, "begin", away)
        with pytest.raises(openai.InternalServerError):
            await chat(access)
        monkeypatch.setattr(store, "begin", begin)
        raise AgentFault("The program exited with status 1.")

    run = await played(program)
    assert (run.failure_kind, run.reward) == ("infrastructure", None)
    assert "does not answer" in run.error or "RuntimeError" in run.error


async def test_a_program_that_waits_for_the_platform_until_the_runs_deadline_is_no_agents_failure(
    platform,
):
    async def fail():
        raise RuntimeError("the engine broke")

    script(platform, "some words", then=fail)

    async def agent(run):
        async with run_pass(run, model="tiny") as access:
            while True:
                with pytest.raises(openai.InternalServerError):
                    await chat(access)
                await asyncio.sleep(0.2)

    (run,) = (await count().run(agent, rollout_timeout=3)).runs
    assert (run.failure_kind, run.trace.stop_reason) == ("infrastructure", "timeout")
    assert run.reward is None


async def test_side_calls_are_stored_with_the_reason_why_they_are_not_trained_on(platform):
    script(platform, "a title", CALL, "some words")

    async def program(access):
        await chat(access, messages=[{"role": "user", "content": "Name it."}])
        turn = await chat(access, tools=TOOLS)
        said = {
            "role": "assistant",
            "content": None,
            "tool_calls": [turn.tool_calls[0].model_dump()],
        }
        result = {"role": "tool", "tool_call_id": turn.tool_calls[0].id, "content": "three"}
        return (await chat(access, tools=TOOLS, messages=[*HELLO, said, result])).content

    run = await played(program)
    await run.recorder.flush()
    stored = samples_of(platform.store, "0" * 32, [run.trace_id])[run.trace_id]
    assert [sample.excluded for sample in stored] == ["side_call", None, None]
    assert [step.sample.excluded for step in agent_steps(run)] == ["side_call", None, None]
    assert run.trace.extra["model_calls"]["excluded"] == {"side_call": 1}
    assert len(datums_of(payload_of(run.trace, run.reward))) == 1
