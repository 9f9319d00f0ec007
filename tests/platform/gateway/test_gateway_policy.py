"""A policy that learned one conversation, asked by the official clients; its tokens, and its head while it moves."""

import asyncio
import json
import threading

import anthropic
import openai
import pytest
from google import genai
from tests.platform.gateway.gateway_server import serving

from hud.client import connect, disconnect
from hud.inference.served_model import OpenAIChatModel
from hud.trace import SamplingParams, ToolSpec
from hud.train import TrainingClient, TrajectoryPayload, TrajectorySample
from hud_platform.gateway.chat_formats import format_of
from hud_platform.training.supervised_rendering import render_conversation

SCHEMA = {"type": "object", "properties": {"at": {"type": "integer"}}, "required": ["at"]}
TOOL = ToolSpec(name="look", parameters=SCHEMA)
CALL = {"name": "look", "arguments": '{"at": 7}'}
TAUGHT = [
    {"role": "user", "content": "What is at 7?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c", "type": "function", "function": CALL}],
    },
    {"role": "tool", "tool_call_id": "c", "content": "seven apples"},
    {"role": "assistant", "content": "There are seven apples."},
]
TEXTS = [
    'What is at 7? <tool_call>{"name": "look", "arguments": {"at": 7}}</tool_call>',
    "seven apples There are seven apples. look(at)",
] * 5
SIZES = {"vocab_size": 330, "hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("taught")
    patch = pytest.MonkeyPatch()
    patch.setenv("HUD_HOME", str(folder))
    patch.delenv("HUD_API_URL", raising=False)
    yield folder
    disconnect(folder)
    patch.undo()


@pytest.fixture(scope="module")
def taught(home):
    """The platform with a model that knows `TAUGHT` by heart."""

    async def teach():
        sizes = {**SIZES, "max_context": 256}
        await connect().post("/v2/models/create", {"name": "m", "texts": TEXTS, "sizes": sizes})
        platform = connect().embedded.parts
        chat = format_of(platform.registry.model("m").folder).chat
        turns = [
            TrajectorySample(**sample, output_logprobs=[])
            for sample in render_conversation(chat, TAUGHT, [TOOL])
        ]
        payload = TrajectoryPayload(samples=turns, reward=1.0)
        trainer = TrainingClient("m")
        for step in range(60):
            await trainer.forward_backward([payload], loss_fn="cross_entropy")
            await trainer.optim_step(learning_rate=1e-2, save=step in (0, 59))

    asyncio.run(teach())
    return connect().embedded


@pytest.fixture(scope="module")
def url(taught):
    with serving(taught.app) as url:
        yield url


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_openai(url, stream):
    client = openai.OpenAI(base_url=url, api_key="k", max_retries=0)
    tools = [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]
    messages = [TAUGHT[0]]

    def ask():
        asked = {"model": "m", "messages": messages, "tools": tools, "temperature": 0}
        if not stream:
            return client.chat.completions.create(**asked).choices[0]
        with client.chat.completions.stream(**asked) as events:
            return events.get_final_completion().choices[0]

    first = ask()
    (call,) = first.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("look", {"at": 7})
    assert first.finish_reason == "tool_calls"
    messages.append(
        {"role": "assistant", "tool_calls": [call.model_dump(include={"id", "type", "function"})]}
    )
    messages.append({"role": "tool", "tool_call_id": call.id, "content": "seven apples"})
    assert ask().message.content == "There are seven apples."


@pytest.mark.parametrize("stream", [False, True])
def test_anthropic(url, stream):
    client = anthropic.Anthropic(base_url=url, api_key="k", max_retries=0)
    messages = [TAUGHT[0]]

    def ask():
        tools = [{"name": "look", "input_schema": SCHEMA}]
        # The client has no name for it any more; the wire still does.
        asked = {"model": "m", "max_tokens": 60, "messages": messages, "tools": tools}
        asked["extra_body"] = {"temperature": 0}
        if not stream:
            return client.messages.create(**asked)
        with client.messages.stream(**asked) as events:
            return events.get_final_message()

    first = ask()
    (call,) = first.content
    assert (call.type, call.name, call.input) == ("tool_use", "look", {"at": 7})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "seven apples"}
    messages += [
        {"role": "assistant", "content": [call.model_dump(exclude_none=True)]},
        {"role": "user", "content": [result]},
    ]
    assert ask().content[0].text == "There are seven apples."


@pytest.mark.parametrize("stream", [False, True])
def test_gemini(url, stream):
    client = genai.Client(api_key="k", http_options={"base_url": url})
    config = genai.types.GenerateContentConfig(
        temperature=0,
        tools=[{"function_declarations": [{"name": "look", "parameters_json_schema": SCHEMA}]}],
        automatic_function_calling={"disable": True},
    )
    contents = [{"role": "user", "parts": [{"text": TAUGHT[0]["content"]}]}]

    def ask():
        asked = {"model": "m", "contents": contents, "config": config}
        if not stream:
            return client.models.generate_content(**asked).candidates[0].content.parts
        answers = client.models.generate_content_stream(**asked)
        return [p for a in answers for c in a.candidates for p in c.content.parts or []]

    (part,) = ask()
    assert (part.function_call.name, part.function_call.args) == ("look", {"at": 7})
    response = {"name": "look", "response": {"result": "seven apples"}}
    contents += [
        {"role": "model", "parts": [part.model_dump(exclude_none=True)]},
        {"role": "user", "parts": [{"function_response": response}]},
    ]
    assert "".join(part.text or "" for part in ask()) == "There are seven apples."


def test_an_agents_model_over_http_is_the_model_in_process(url, taught):
    async def compare():
        there = OpenAIChatModel("m", base_url=url, extra={"return_token_ids": True})
        here = await taught.policy("m", None)
        cut = {"stop": ("n ap", "zzz"), "temperature": 0.0}
        for seed, messages, options in (
            (1, TAUGHT[:1], {}),
            (2, TAUGHT[:1], {"top_p": 0.9}),
            (3, TAUGHT[:3], cut),
            (4, TAUGHT[:1], {"temperature": 1.5}),
            # Nobody set a limit, or a default of ours: both stop where the context ends.
            (5, [{"role": "user", "content": "seven"}], {"max_tokens": None, "temperature": 2.0}),
            (6, TAUGHT[:1], {"max_tokens": 1024, "temperature": 1.0, "top_p": 1.0, "top_k": 0}),
        ):
            params = SamplingParams(**{"max_tokens": 40, "seed": seed, **options})
            told = []
            for model in (here, there):
                done = await model.complete(messages, [TOOL], params)
                told.append(done.model_dump() if hasattr(done, "model_dump") else vars(done))
            for done in told:
                done["usage"] = done["usage"].model_dump(exclude={"cached_tokens"})
                for call in done["tool_calls"]:
                    call.id = ""
            assert told[0] == told[1], options
            if told[0]["sample"] is not None:
                assert told[0]["sample"].temperature == options.get("temperature", 1.0)
        await there.aclose()

    asyncio.run(compare())


async def test_a_pinned_checkpoint_answers_as_it_did(url, taught):
    nodes = await TrainingClient("m").checkpoints()
    client = openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0)
    tools = [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]
    asked = {"messages": [TAUGHT[0]], "tools": tools, "temperature": 0, "max_tokens": 30}
    extra = {"extra_body": {"return_token_ids": True}}
    for node in nodes:
        by_name = await client.chat.completions.create(model=f"m@{node.name}", **asked, **extra)
        pinned = {"extra_body": {"return_token_ids": True, "checkpoint": node.id}}
        by_field = await client.chat.completions.create(model="m", **asked, **pinned)
        assert by_name.choices[0].checkpoint == by_field.choices[0].checkpoint == node.id
        assert by_name.choices[0].token_ids == by_field.choices[0].token_ids
        called = by_name.choices[0].message.tool_calls is not None
        assert called == (node is nodes[-1]), "only the last one has learned to call"
    await client.close()


@pytest.mark.slow
async def test_the_head_moves_under_load_without_a_failed_request(url, taught):
    """No answer mixes two checkpoints: what each says it was drawn by is what it was drawn by."""
    trainer = TrainingClient("m")
    first, last = (node.id for node in await trainer.checkpoints())
    client = openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0)
    extra = {"extra_body": {"return_token_ids": True}}
    answers: list[object] = []
    moved = threading.Event()

    async def ask():
        while not moved.is_set():
            answer = await client.chat.completions.create(
                model="m", messages=[TAUGHT[0]], temperature=0, max_tokens=12, **extra
            )
            answers.append(answer.choices[0])

    async def move():
        for turn in range(50):
            await trainer.set_head(first if turn % 2 == 0 else last)
        moved.set()

    await asyncio.gather(move(), *(ask() for _ in range(8)))
    drawn = {}
    for choice in answers:
        drawn.setdefault(choice.checkpoint, set()).add(tuple(choice.token_ids))
    assert set(drawn) <= {first, last}
    assert len(drawn) == 2
    for checkpoint, ids in drawn.items():
        assert len(ids) == 1, f"{checkpoint} drew several answers at temperature 0"
    assert (await trainer.head()).id == last
    await client.close()
