"""Runs with screenshots are recorded with their pixels, and trained on."""

import base64

import pytest
from tests.engine.picture_folders import png, shown, write_folder

from hud import Environment, TrainingClient
from hud.agents import create_agent
from hud.client import connect, disconnect
from hud.engine.foreign import verdicts
from hud.engine.foreign.verdicts import Verdict
from hud.eval import Taskset
from hud.trace import ImageContent, Message, TextContent
from hud.train import payload_of

env = Environment("screens")


def block(seed):
    return ImageContent(data=base64.b64encode(png(seed)).decode(), mime_type="image/png")


@env.template()
async def look(page: int):
    answer = yield [Message(role="user", content=[TextContent(text="What is it?"), block(page)])]
    yield sum(map(ord, answer)) % 7 / 7  # Answers differ, so that groups have spread.


@pytest.fixture
async def home(tmp_path, monkeypatch):
    monkeypatch.setattr(verdicts, "checked", lambda _: Verdict("chunks"))
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    write_folder(tmp_path / "folder", "qwen3_vl")
    body = {"source": str(tmp_path / "folder"), "name": "m"}
    await connect().post("/v2/models/add", body)
    yield tmp_path / "home"
    disconnect(tmp_path / "home")


async def played():
    tasks = Taskset("pages", [look(page=page) for page in (1, 2)])
    return (await tasks.run(create_agent("m", completion_kwargs={"max_tokens": 8}), group=3)).runs


async def test_runs_with_pictures_are_recorded_and_train_the_weights(home):
    runs = await played()
    samples = [
        step.sample for run in runs for step in run.trace.steps if getattr(step, "sample", None)
    ]
    assert samples
    assert all(len(sample.pictures) == 1 for sample in samples)
    trainer = TrainingClient("m")
    by_run = await trainer.forward_backward(runs)
    assert by_run.num_datums > 0
    by_id = await trainer.forward_backward([run.trace_id for run in runs])
    payloads = [payload_of(run.trace, run.reward) for run in runs]
    by_value = await trainer.forward_backward(payloads, group_size=3)
    for other in (by_id, by_value):
        assert other.metrics["loss:sum"] == pytest.approx(by_run.metrics["loss:sum"], abs=1e-5)
    names = [path.name for path in (home / "blobs").rglob("*") if path.is_file()]
    assert len(names) == 2  # The files of six runs, each stored once.
    # The trainer's logprobs are the sampler's.
    assert abs(by_run.metrics["sampler_gap:mean"]) < 1e-5
    step = await trainer.optim_step(learning_rate=1e-3)
    assert step.step == 1


async def test_the_gateway_reads_pictures_of_chat_completions(home):
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "?"}, shown(png(1))]}],
        "max_tokens": 3,
        "return_token_ids": True,
        "logprobs": True,
    }
    answer = await connect().post("/v1/chat/completions", body)
    choice = answer["choices"][0]
    (picture,) = choice["pictures"]
    assert (
        choice["prompt_token_ids"][picture["start"]]
        == choice["prompt_token_ids"][picture["start"] + 1]
    )
    assert set(picture) == {"start", "tokens", "sha256", "pixels"}
    again = await connect().post("/v1/chat/completions", body)
    assert again["usage"]["prompt_tokens"] == answer["usage"]["prompt_tokens"]
    plain = {**body, "messages": [{"role": "user", "content": "Only words."}]}
    answer = await connect().post("/v1/chat/completions", plain)
    assert "pictures" not in answer["choices"][0]
