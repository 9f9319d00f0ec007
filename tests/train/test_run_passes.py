"""Training on runs that a program played through a pass: the same tokens, log-probabilities and versions as a policy's in this process."""

import asyncio
import itertools

import httpx
import pytest
from tests.platform.gateway.gateway_server import serving

from hud import Environment, TrainingClient
from hud.client import connect, disconnect
from hud.client.run_pass import run_pass
from hud.eval import Taskset
from hud.inference.models import chat_model
from hud.trace import AgentStep, SamplingParams
from hud.train.config import TrainConfig
from hud.train.rollouts.programs import program_agent
from hud_platform.application import create_app
from hud_platform.gateway.run_passes.sampling_override import SEEDS_OF_A_CALL
from hud_platform.process.config import PlatformConfig
from hud_platform.server import first_key

TEXTS = ["say red green blue yellow", "a e i o u"] * 3
SIZES = {
    "vocab_size": 300,
    "hidden": 32,
    "layers": 1,
    "heads": 2,
    "kv_heads": 1,
    "max_context": 128,
}
HELLO = [{"role": "user", "content": "say red"}]

REWARDS = itertools.cycle((0.0, 0.5, 1.0))
"""Rewards of runs as they are graded: of six, no three are equal, so that both groups have spread."""
env = Environment("vowels")


@env.template()
async def say(word: str):
    yield f"say {word}"
    yield next(REWARDS)


@pytest.fixture
def embedded(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path))
    monkeypatch.delenv("HUD_API_URL", raising=False)


@pytest.fixture
def server(embedded, tmp_path, monkeypatch):
    """A server with keys, to which this process talks over HTTP."""
    app = create_app(PlatformConfig(tmp_path / "server", keys=True))
    with serving(app) as url:
        monkeypatch.setenv("HUD_API_URL", url)
        monkeypatch.setenv("HUD_API_KEY", first_key(app.state.parts))
        yield
    app.state.parts.close()


@pytest.fixture
async def home(request, tmp_path):
    request.getfixturevalue(getattr(request, "param", "embedded"))
    await connect().post("/v2/models/create", {"name": "m", "texts": TEXTS, "sizes": SIZES})
    yield tmp_path
    disconnect(tmp_path)


async def ask(access, messages, **fields):
    headers = {"authorization": f"Bearer {access.key}"}
    body = {"model": "some-model", "messages": messages, **fields}
    async with httpx.AsyncClient(verify=False, timeout=60) as client:
        answer = await client.post(
            f"{access.base_url}/v1/chat/completions", json=body, headers=headers
        )
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]


async def program(run):
    """A program of two turns, which wants another sampling than training does."""
    sampling = SamplingParams(max_tokens=10, temperature=1.0)
    async with run_pass(run, model="m", sampling=sampling) as access:
        messages = [{"role": "user", "content": run.prompt_text}]
        said = await ask(access, messages, temperature=0, top_p=0.1)
        more = [*messages, said, {"role": "user", "content": "a e i"}]
        run.trace.content = (await ask(access, more))["content"] or ""


async def played(group=3):
    tasks = Taskset("words", [say(word=word) for word in ("red", "blue")])
    return (await tasks.run(program, group=group)).runs


def samples(run):
    return [step.sample for step in run.trace.steps if isinstance(step, AgentStep)]


@pytest.mark.parametrize("home", ["embedded", "server"], indirect=True)
async def test_a_program_is_trained_on_what_was_sampled_and_plays_with_the_newest_weights(home):
    runs = await played()
    assert [(run.failure_kind, len(samples(run))) for run in runs] == [(None, 2)] * 6
    trainer = TrainingClient("m")
    computed = await trainer.forward(runs)
    assert computed.data
    for datum in computed.data:
        for lp, q, mask in zip(datum.logprobs, datum.sampling_logprobs, datum.mask, strict=True):
            assert lp == pytest.approx(q, abs=1e-4) or not mask
    found = await trainer.forward_backward(runs)
    sampled = sum(len(sample.output_token_ids) for run in runs for sample in samples(run))
    assert found.metrics["action_tokens:sum"] == sampled
    assert found.metrics["groups:sum"] == 2
    step = await trainer.optim_step(learning_rate=1e-3)
    later = await played(group=1)
    assert {sample.checkpoint for run in later for sample in samples(run)} == {step.checkpoint_id}
    assert {sample.checkpoint for run in runs for sample in samples(run)} == {None}


async def test_a_seed_gives_the_tokens_that_the_policy_samples_in_this_process(home):
    model = await chat_model("m")
    own = [
        await model.complete(HELLO, [], SamplingParams(max_tokens=12, seed=5 + SEEDS_OF_A_CALL * n))
        for n in (1, 2)
    ]

    async def seeded(run):
        async with run_pass(run, model="m", sampling={"max_tokens": 12, "seed": 5}) as access:
            await ask(access, HELLO)
            await ask(access, HELLO)

    (run,) = (await say(word="red").run(seeded)).runs
    for sample, completion in zip(samples(run), own, strict=True):
        assert sample.prompt_token_ids == completion.sample.prompt_token_ids
        assert sample.output_token_ids == completion.sample.output_token_ids
        assert sample.output_logprobs == pytest.approx(completion.sample.output_logprobs, abs=1e-5)


async def test_runs_of_a_training_have_seeds_by_their_place(home):
    config = TrainConfig(model="m", tasks="-", agent="http://127.0.0.1:9")
    (run,) = (await say(word="red").run(lambda _: "red")).runs
    seeds = [
        program_agent(config, 1.0, place=place).model.seed_of(run)
        for place in ((0, 1), (0, 1), (0, 2))
    ]
    assert seeds[0] == seeds[1] != seeds[2]


async def test_weights_that_change_within_an_answer_are_named_with_its_tokens(home):
    trainer = TrainingClient("m")
    runs = await played(group=2)
    await trainer.forward_backward(runs)
    before = await trainer.optim_step(learning_rate=1e-3)
    swapped = []

    async def slow(run):
        async with run_pass(run, model="m", sampling={"max_tokens": 100}) as access:
            asking = asyncio.create_task(ask(access, HELLO))
            await trainer.forward_backward(runs)
            swapped.append(await trainer.optim_step(learning_rate=1e-3))
            await asking

    (run,) = (await say(word="red").run(slow)).runs
    (sample,) = samples(run)
    named = {sample.checkpoint, *(checkpoint for _, checkpoint in sample.swaps)}
    assert named <= {before.checkpoint_id, swapped[0].checkpoint_id}


@pytest.mark.slow
async def test_a_program_is_served_where_the_engine_has_a_process_of_its_own(home):
    async with connect().embedded.engine_process():
        (run,) = (await say(word="red").run(program)).runs
        assert (run.failure_kind, len(samples(run))) == (None, 2), run.error
        trainer = TrainingClient("m")
        await trainer.forward_backward([run], loss_fn="cross_entropy")
        step = await trainer.optim_step(learning_rate=1e-3)
        (later,) = (await say(word="red").run(program)).runs
    assert {sample.checkpoint for sample in samples(later)} == {step.checkpoint_id}
