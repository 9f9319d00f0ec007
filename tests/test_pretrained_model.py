"""A real pretrained model, SmolLM2-135M-Instruct, through the loop: chat, tools, warm-up, GRPO, the gateway, an export."""

import asyncio

import httpx
import pytest
from safetensors.torch import load_file

from hud import Environment, Taskset
from hud.agents import ScriptedAgent
from hud.client import connect, disconnect
from hud.eval import Job
from hud.graders import exact_match
from hud.inference.models import chat_model
from hud.trace import SamplingParams, ToolCall, ToolSpec
from hud.train.config import TrainConfig
from hud.train.loop import train
from hud.train.supervised.supervised_run import warm_up
from tests.platform.gateway.gateway_server import serving
from tests.pretrained_model import NAME

pytestmark = pytest.mark.slow

CAPITAL = [
    {"role": "user", "content": "What is the capital of Italy? Answer in one sentence."},
]
"""Every token of its greedy answer leads by at least a nat, more than bfloat16 rounds."""
GREEDY = SamplingParams(temperature=0, max_tokens=12)
ADAPTER = {"training": "lora", "lora_rank": 8, "tool_call_parser": "pythonic"}

env = Environment("shelves", version="1.0.0")


@env.tool
async def count(item: str) -> str:
    """Pieces of an item."""
    return str(10 + len(item))


@env.template()
async def ask(item: str):
    answer = yield f"How many '{item}' are there?"
    yield exact_match(answer, str(10 + len(item)))


TASKS = Taskset("shelves", [ask(item=item) for item in ("bolts", "hinges")])


@pytest.fixture(scope="module")
def home(pretrained_home):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HUD_HOME", str(pretrained_home))
        patch.delenv("HUD_API_URL", raising=False)
        yield pretrained_home
        disconnect(pretrained_home)


@pytest.fixture
async def fork(home):
    """A fork with a new adapter; returns its slug."""
    body = {"source_model_id": NAME, "name": "fork", "config": ADAPTER}
    await connect().post("/v2/models/fork", body)
    yield "fork"
    await connect().delete("/v2/models/fork")


def solve(messages, tools, trace):
    last = messages[-1]
    if last["role"] == "tool":
        return last["content"]
    return ToolCall(id="call", name="count", arguments={"item": last["content"].split("'")[1]})


async def demonstrated():
    job = await Job.start("demonstrations", group=4)
    await TASKS.run(ScriptedAgent(solve, name="oracle"), job=job)
    await job.finish()
    assert job.reward == 1.0
    return job.runs


async def test_it_knows_the_capital_of_france(home):
    model = await chat_model(NAME)
    answer = await model.complete(CAPITAL, [], GREEDY)
    assert answer.content == "The capital of Italy is Rome."
    assert answer.finish_reason == "stop"


async def test_tools_are_in_its_prompt(home):
    model = await chat_model(NAME)
    tool = ToolSpec(name="count", parameters={"type": "object", "properties": {}})
    plain, offered = [await model.complete(CAPITAL, tools, GREEDY) for tools in ([], [tool])]
    assert offered.usage.prompt_tokens > plain.usage.prompt_tokens + 50


async def test_it_learns_calls_from_a_script_and_takes_a_step_by_reward(fork):
    taught = await warm_up(fork, await demonstrated(), epochs=4, batch=4, lr=1e-3)
    assert taught.last_loss < taught.first_loss / 2
    config = TrainConfig(
        model=fork, steps=1, group=4, tasks_per_step=2, lr=1e-4, max_tokens=16, max_turns=3
    )
    report = await train(config, tasks=TASKS)
    (row,) = report.history
    assert row["metrics"]["turns:mean"] > 1
    assert row["metrics"].get("sampler_gap:mean", 0.0) < 1e-4


async def test_the_gateway_answers_with_it(home):
    body = {"model": NAME, "messages": CAPITAL, "temperature": 0, "max_tokens": 12}
    await connect().get("/v2/models")  # Opens the platform of this process.
    with serving(connect().embedded.app) as url:
        async with httpx.AsyncClient(timeout=120) as http:
            response = await http.post(f"{url}/v1/chat/completions", json=body)
    assert response.json()["choices"][0]["message"]["content"] == "The capital of Italy is Rome."


async def test_its_export_is_read_by_transformers_and_answers_alike(home, tmp_path):
    transformers = pytest.importorskip("transformers")
    body = {"folder": str(tmp_path / "out"), "checkpoint_id": None, "form": "hf"}
    await connect().post(f"/v2/models/{NAME}/export", body)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    model = await asyncio.to_thread(
        transformers.AutoModelForCausalLM.from_pretrained, tmp_path / "out", dtype="float32"
    )
    prompt = tokenizer.apply_chat_template(
        CAPITAL, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    ids = model.generate(**prompt, max_new_tokens=12, do_sample=False)[
        0, prompt.input_ids.shape[1] :
    ]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "The capital of Italy is Rome."
    assert len(load_file(tmp_path / "out" / "model.safetensors")) == len(model.state_dict()) - 1
