"""Run passes for providers' models: requests go through as they are, and each answer is a step without a sample."""

import asyncio
import json

import anthropic
import openai
import pytest
from tests.platform.gateway.gateway_server import serving
from tests.platform.gateway.test_gateway_providers import ANSWER, HELLO, STREAM, StandIn

from hud.client import connect, disconnect
from hud.client.run_pass import RunLimits, run_pass
from hud.environment import Environment
from hud.trace import AgentStep, SamplingParams

env = Environment("greetings")


@env.template()
async def greet():
    answer = yield "Say hi."
    yield 1.0 if answer == "hi" else 0.0


@pytest.fixture
async def provider(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    monkeypatch.setenv("STANDIN_API_KEY", "sk-secret")
    standin = StandIn()
    with serving(standin) as url:
        config = {
            "url": f"{url}/v1",
            "dialect": "openai",
            "key_env": "STANDIN_API_KEY",
            "upstream_model": "big/one",
            "price_in": 100.0,
            "price_out": 200.0,
        }
        await connect().post("/v2/models/provide", {"name": "big", "provider": config})
        yield standin
    disconnect(tmp_path)


async def played(program, **options):
    async def agent(run):
        async with run_pass(run, model="big", **options) as access:
            run.trace.content = await program(access)

    return (await greet().run(agent)).runs[0]


def client_of(access):
    return openai.AsyncOpenAI(base_url=f"{access.base_url}/v1", api_key=access.key, max_retries=0)


async def chat(access):
    async with client_of(access) as client:
        body = {"model": "gpt-x", "messages": HELLO, "top_p": 0.5}
        return (await client.chat.completions.create(**body)).choices[0].message.content


async def chat_stream(access):
    async with client_of(access) as client:
        stream = await client.chat.completions.create(model="gpt-x", messages=HELLO, stream=True)
        return "".join(
            [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
        )


async def messages(access):
    client = anthropic.AsyncAnthropic(base_url=access.base_url, api_key=access.key)
    async with client:
        answer = await client.messages.create(model="claude-x", messages=HELLO, max_tokens=50)
        return answer.content[0].text


def step_of(run):
    (step,) = [step for step in run.trace.steps if isinstance(step, AgentStep)]
    return step


@pytest.mark.parametrize("program", [chat, chat_stream, messages])
async def test_an_answer_of_a_provider_is_a_step(provider, program):
    if program is not chat:  # Another dialect is asked for a stream.
        provider.headers = {"content-type": "text/event-stream"}
        end = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
        provider.pieces = [*STREAM[:1], STREAM[1] + b"\n" + end, STREAM[2]]
    run = await played(program)
    assert run.reward == 1.0, run.error
    step = step_of(run)
    assert (step.content, step.model, step.sample) == ("hi", "big", None)
    counts = (1000, 200) if program is chat else (7, 3)
    assert (step.usage.prompt_tokens, step.usage.completion_tokens) == counts
    assert step.usage.cost_usd == pytest.approx((counts[0] * 100 + counts[1] * 200) / 1e6)
    sent = json.loads(provider.requests[0][2])
    assert sent["model"] == "big/one"
    assert sent.get("top_p") == (0.5 if program is chat else None)


async def test_a_providers_tool_call_is_read_with_its_arguments(provider):
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 3}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    provider.pieces = [json.dumps({**ANSWER, "choices": [choice]}).encode()]
    (made,) = step_of(await played(chat)).tool_calls
    assert (made.id, made.name, made.arguments) == ("c1", "look", {"at": 3})


@pytest.mark.parametrize("program", [chat, messages])
async def test_an_error_of_a_provider_is_infrastructure(provider, program):
    provider.status, provider.pieces = 500, [b'{"error": {"message": "broken"}}']

    async def failing(access):
        with pytest.raises((openai.InternalServerError, anthropic.InternalServerError)):
            await program(access)
        return "nothing"

    run = await played(failing)
    assert (run.failure_kind, run.reward) == ("infrastructure", None)
    assert "broken" in run.error


async def test_a_limit_of_cost_ends_the_run(provider):
    async def spending(access):
        await chat(access)
        with pytest.raises(openai.PermissionDeniedError, match="cost 0.1 dollars"):
            await chat(access)
        return "hi"

    run = await played(spending, limits=RunLimits(cost_usd=0.1))
    assert (run.reward, run.trace.stop_reason) == (1.0, "max_steps")


class Obedient(StandIn):
    """A provider that samples as many tokens as it may, a thousand without a limit, after a prompt of ten."""

    async def __call__(self, scope, receive, send):
        async def heard():
            message = await receive()
            if message["type"] == "http.request" and message.get("body"):
                body = json.loads(message["body"])
                limit = body.get("max_completion_tokens") or body.get("max_tokens") or 1000
                usage = {"prompt_tokens": 10, "completion_tokens": limit}
                self.pieces = [json.dumps({**ANSWER, "usage": usage}).encode()]
            return message

        await asyncio.sleep(0.1)
        await super().__call__(scope, heard, send)


async def at_once(access, count=8, **body):
    """Make calls at once; returns the tokens of those that were answered."""

    async def call():
        try:
            async with client_of(access) as client:
                made = await client.chat.completions.create(model="gpt-x", messages=HELLO, **body)
                return made.usage.completion_tokens
        except openai.PermissionDeniedError:
            return 0

    return await asyncio.gather(*(call() for _ in range(count)))


@pytest.mark.parametrize("stated", [{}, {"max_tokens": 40}, {"max_completion_tokens": 4000}])
@pytest.mark.parametrize(
    ("limits", "most"),
    [
        ({"tokens": 90}, 90),
        ({"cost_usd": 0.02}, 100),
        pytest.param({"cost_usd": 0.06}, 300, marks=pytest.mark.slow),
    ],
)
async def test_calls_at_once_of_a_providers_model_stay_within_the_runs_limits(
    provider, stated, limits, most
):
    provider.__class__ = Obedient
    sampled = []

    async def program(access):
        sampled.extend(await at_once(access, **stated))
        return "hi"

    run = await played(program, limits=RunLimits(**limits))
    assert run.trace.extra["model_calls"]["refused"] == sampled.count(0)
    assert 0 < sum(sampled) <= most
    costs = [step.usage.cost_usd for step in run.trace.steps if isinstance(step, AgentStep)]
    # The prompt of the last call may pass the limit.
    assert sum(costs) <= limits.get("cost_usd", 1.0) + 10 * 100 / 1e6


async def test_a_bound_of_the_run_holds_for_a_request_that_is_passed_on(provider):
    provider.__class__ = Obedient

    async def program(access):
        assert await at_once(access, 3, max_tokens=70) == [50, 50, 50]
        assert await at_once(access, 3, max_tokens=30) == [30, 30, 30]
        return "hi"

    run = await played(program, sampling=SamplingParams(max_tokens=50))
    assert run.reward == 1.0, run.error
