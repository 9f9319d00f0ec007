"""Programs rewrite, branch and repeat their conversations; the samples of their run continue each other all the same."""

import json

import httpx
import pytest
from tests.platform.gateway.gateway_server import SIZES, TEXTS, ScriptedEngine

from hud.client import connect, disconnect
from hud.learning.datums import datums_of, payload_of
from hud.trace import Trace, new_id, parse_step
from hud.trace.sampled.call_samples import expand_samples
from hud_platform.gateway.chat_formats import format_of
from hud_platform.store.tables import LOCAL_TEAM

HELLO = [{"role": "system", "content": "some words"}, {"role": "user", "content": "hello"}]
LOOK = {
    "type": "object",
    "properties": {"at": {"type": "integer"}, "all": {"type": "boolean", "default": False}},
}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": LOOK}}]


def looking(at):
    call = json.dumps({"name": "look", "arguments": {"at": at}})
    return f"some  words\n<tool_call>\n{call}\n</tool_call>"


@pytest.fixture
def platform(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    parts = connect().embedded.parts
    record = parts.registry.of(LOCAL_TEAM).create("tiny", TEXTS, sizes=SIZES)
    parts.tokenizer = format_of(record.folder).chat.tokenizer
    yield parts
    disconnect(tmp_path)


class Program:
    """A program of chat completions that plays a run."""

    def __init__(self, parts, url, *texts):
        self.parts, self.url = parts, url
        self.engine = parts.__dict__["engine"] = ScriptedEngine(parts.tokenizer, *texts)

    async def open(self):
        asked = {"trace_id": new_id(), "model": "tiny"}
        self.opened = await connect().post("/v1/run-passes", asked)

    async def call(self, messages, tools=TOOLS):
        """Return the model's message."""
        body = {"model": "any", "messages": messages, **({"tools": tools} if tools else {})}
        headers = {"Authorization": f"Bearer {self.opened['key']}"}
        async with httpx.AsyncClient(base_url=self.url, timeout=30) as client:
            answer = await client.post("/v1/chat/completions", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["message"]

    async def end(self):
        path = f"/v1/run-passes/{self.opened['id']}/end"
        result = await connect().post(path, {"token": self.opened["token"]})
        steps = [parse_step(step) for step in expand_samples(result["steps"])]
        return Trace(steps=steps), result["metrics"]


@pytest.fixture
async def program(platform):
    """Return a function that makes a program whose model says some texts."""
    with connect().embedded.listening() as url:

        async def made(*texts):
            program = Program(platform, url, *texts)
            await program.open()
            return program

        yield made


def rewritten(message, **arguments):
    """The message without thoughts and white space, its call with these arguments."""
    (call,) = message["tool_calls"]
    function = {"name": "look", "arguments": json.dumps(arguments)}
    calls = [{**call, "function": function}]
    return {"role": "assistant", "content": "some words", "tool_calls": calls}


def result(message, text="three"):
    return {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": text}


def prompts(program):
    return [list(request.prompt) for _, _, request in program.engine.asked]


async def test_prompts_continue_sampled_ids_although_the_program_normalises_its_history(program):
    play = await program(looking(3), looking(4), "done")
    first = await play.call(HELLO)
    history = [*HELLO, rewritten(first, all=False, at=3), result(first)]
    second = await play.call(history)
    # The other server of the store has none of it in memory.
    play.parts.gateway.runs._conversations.clear()
    await play.call([*history, rewritten(second, at=4), result(second)])
    whole = [
        prompt + list(output)
        for prompt, output in zip(prompts(play), play.engine.turns, strict=True)
    ]
    assert prompts(play)[1][: len(whole[0])] == whole[0]
    assert prompts(play)[2][: len(whole[1])] == whole[1]
    trace, metrics = await play.end()
    (datum,) = datums_of(payload_of(trace, 1.0))
    assert datum.tokens.tolist() == whole[2]
    assert datum.actions == sum(map(len, play.engine.turns))
    assert metrics["continued"] == 2
    assert metrics["rewrites"]["defaults"] == 1


async def test_another_text_is_rendered_as_the_program_wrote_it(program):
    play = await program(looking(3), "done")
    first = await play.call(HELLO)
    await play.call([*HELLO, rewritten(first, at=5), result(first)])
    text = play.parts.tokenizer.decode(prompts(play)[1], skip_special_tokens=False)
    assert '"at": 5' in text
    trace, metrics = await play.end()
    assert len(datums_of(payload_of(trace, 1.0))) == 2
    assert metrics["rewrites"] == {"arguments": 1}


async def test_two_interleaved_subagents_and_a_compaction_are_trained_once_each(program):
    play = await program(*[looking(number) for number in range(11)])

    async def turn(history):
        message = await play.call(history)
        return [
            *history,
            rewritten(message, at=json.loads(arguments_of(message))["at"]),
            result(message),
        ]

    def arguments_of(message):
        return message["tool_calls"][0]["function"]["arguments"]

    main = await turn(HELLO)
    main = await turn(main)
    agents = [[HELLO[0], {"role": "user", "content": name}] for name in ("one", "two")]
    first, second = [await turn(agent) for agent in agents]
    first = await turn(first)
    second = await turn(second)
    main = await turn(main)
    await turn([*main[:-2], {"role": "user", "content": "Sum it up."}])  # Without the newest turn.
    short = await turn([HELLO[0], {"role": "user", "content": "The summary."}])
    await turn(short)
    trace, _ = await play.end()
    datums = datums_of(payload_of(trace, 1.0))
    outputs = [list(step.sample.output_token_ids) for step in trace.steps if step.source == "agent"]
    assert sum(datum.actions for datum in datums) == sum(map(len, outputs))
    assert [[number for _, number in datum.turns] for datum in datums] == [
        [0, 1, 6],
        [2, 4],
        [3, 5],
        [7],
        [8, 9],
    ]


async def test_side_calls_and_superseded_answers_are_recorded_and_not_trained_on(program):
    play = await program("a title", looking(1), looking(2), "done")
    await play.call([{"role": "user", "content": "Name it."}], tools=None)
    lost = await play.call(HELLO)
    again = await play.call(HELLO)
    assert lost != again
    await play.call([*HELLO, again, result(again)])
    trace, metrics = await play.end()
    agent = [step for step in trace.steps if step.source == "agent"]
    assert [step.sample.excluded for step in agent] == ["side_call", "superseded", None, None]
    assert metrics["excluded"] == {"side_call": 1, "superseded": 1}
    assert len(datums_of(payload_of(trace, 1.0))) == 1
