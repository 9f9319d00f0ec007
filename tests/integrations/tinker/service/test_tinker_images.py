"""Image chunks of Tinker's inputs are sampled and trained as the model's own processor reads them."""

import asyncio
import base64

import httpx
import numpy as np
import pytest
import torch
from tests.engine.picture_folders import png, shown, write_folder
from tests.integrations.tinker.service.test_tinker_requests import Api

from hud.engine.chat.chat_format import ChatFormat
from hud.engine.config import DecoderConfig
from hud.engine.foreign import verdicts
from hud.engine.foreign.verdicts import Verdict
from hud.engine.pictures.processor import picture_processor
from hud_integrations.shared.protobuf import data, fields, integer
from hud_platform.application import create_app
from hud_platform.process.config import PlatformConfig

PAGE = png(1)
ADDRESS = {"type": "image_asset_pointer", "format": "png", "location": "https://example.org/a.png"}


class Pictures:
    """A platform whose model `m` has a vision tower, Tinker's API over it, and a prompt with a picture."""

    def __init__(self, api, folder, model):
        self.api, self.folder, self.model = api, folder, model
        chat = ChatFormat(folder, DecoderConfig.from_folder(folder))
        content = [{"type": "text", "text": "What is it?"}, shown(PAGE)]
        self.prompt = chat.render([{"role": "user", "content": content}], [])
        (self.picture,) = self.prompt.pictures
        self.before = self.prompt[: self.picture.start]
        self.after = self.prompt[self.picture.start + self.picture.tokens :]

    def chunks(self, expected=None):
        image = {
            "type": "image",
            "format": "png",
            "data": base64.b64encode(PAGE).decode(),
            "expected_tokens": expected,
        }
        text = [{"type": "encoded_text", "tokens": list(ids)} for ids in (self.before, self.after)]
        return [text[0], image, text[1]]

    async def sampled(self, chunks, **more):
        """Return the answer to a sampling request."""
        session = await self.api.post("create_session", {"tags": [], "sdk_version": "0.38.0"})
        body = {
            "session_id": session["session_id"],
            "sampling_session_seq_id": 0,
            "base_model": "m",
        }
        sampler = await self.api.post("create_sampling_session", body)
        body = {
            "sampling_session_id": sampler["sampling_session_id"],
            "seq_id": 1,
            "num_samples": 1,
            "prompt": {"chunks": chunks},
            "sampling_params": {"max_tokens": 5, "stop": []},
            **more,
        }
        return await self.api.result(await self.api.post("asample", body))

    async def passed(self, model, number, tokens, *, expected=None, forward_only=False):
        """Return the answer to a supervised pass over the prompt and `tokens`."""
        image = data(1, PAGE) + data(2, "png")
        image += b"" if expected is None else integer(3, expected)
        inputs = [self.after, tokens[:-1]]
        chunks = [text_chunk(self.before), data(2, image), *map(text_chunk, inputs)]
        prompt = len(self.prompt)
        targets = [0] * (prompt - 1) + list(tokens)
        weights = [0.0] * (prompt - 1) + [1.0] * len(tokens)
        columns = column("target_tokens", targets, np.int64, 2)
        columns += column("weights", weights, np.float32, 1)
        datum = b"".join(data(1, chunk) for chunk in chunks) + columns
        body = data(1, model) + integer(2, number) + data(3, datum) + data(4, "cross_entropy")
        answer = await self.api.http.post(
            "/api/v1/forward_backward",
            content=body + integer(6, int(forward_only)),
            headers={"content-type": "application/x-protobuf"},
        )
        assert answer.status_code == 200, answer.text
        return await self.api.result(answer.json())

    @torch.no_grad()
    def logprobs(self, tokens):
        """Return the logprobs of `tokens` after the prompt, as `transformers` computes them."""
        ids = torch.tensor([[*self.prompt, *tokens]])
        values = picture_processor(self.folder).values([PAGE])
        kinds = (ids == self.model.config.image_token_id).long()
        logits = self.model(input_ids=ids, mm_token_type_ids=kinds, **values).logits[0]
        every = logits.log_softmax(-1)[len(self.prompt) - 1 : -1]
        return every.gather(-1, torch.tensor(tokens)[:, None]).squeeze(-1).numpy()


def text_chunk(tokens):
    return data(1, data(1, np.asarray(tokens, np.int32).tobytes()))


def column(name, values, dtype, kind):
    tensor = data(1, np.asarray(values, dtype).tobytes()) + integer(3, kind)
    return data(2, data(1, name) + data(2, tensor + integer(4, len(values))))


def sequence_of(answer):
    """Return tokens and logprobs of an answer's sequence."""
    sequence = dict(fields(dict(fields(answer))[1]))
    return np.frombuffer(sequence[2], np.int32).tolist(), np.frombuffer(sequence[3], np.float32)


def logprobs_of(answer):
    """Return the logprobs of the one datum of a pass."""
    record = dict(fields(dict(fields(answer))[2]))
    tensor = dict(fields(dict(fields(record[2]))[2]))
    return np.frombuffer(tensor[1], np.float32)


@pytest.fixture
async def pictures(tmp_path, monkeypatch):
    monkeypatch.setattr(verdicts, "checked", lambda _: Verdict("chunks"))
    model = write_folder(tmp_path / "folder", "qwen3_vl")
    app = create_app(PlatformConfig(tmp_path / "home"))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://hud", timeout=60) as http:
        source = {"source": str(tmp_path / "folder"), "name": "m"}
        added = await http.post("/v2/models/add", json=source)
        assert added.status_code == 200, added.text
        yield Pictures(Api(http), tmp_path / "folder", model)
    await app.state.parts.service("tinker").futures.close()
    await asyncio.to_thread(app.state.parts.close)


async def test_images_are_sampled_and_trained_with_the_logprobs_of_transformers(pictures):
    answer = await pictures.sampled(pictures.chunks(expected=pictures.picture.tokens))
    tokens, logprobs = sequence_of(answer)
    assert len(tokens) == 5
    expected = pictures.logprobs(tokens)
    assert logprobs == pytest.approx(expected, abs=1e-4)
    _, model = await pictures.api.model()
    forward = logprobs_of(await pictures.passed(model, 1, tokens, forward_only=True))
    assert forward[-5:] == pytest.approx(expected, abs=1e-4)
    assert b"loss:sum" in await pictures.passed(model, 2, tokens)
    step = await pictures.api.result(await pictures.api.step(model, 3))
    assert step["metrics"]["step:max"] == 1.0
    trained = logprobs_of(await pictures.passed(model, 4, tokens, forward_only=True))
    assert trained[-5:].sum() > expected.sum()


async def test_images_that_cannot_be_read_are_refused_in_one_sentence(pictures):
    wrong = await pictures.sampled(pictures.chunks(expected=pictures.picture.tokens + 1))
    assert "its chunk expects" in str(wrong)
    broken = [*pictures.chunks()]
    broken[1] = {**broken[1], "data": base64.b64encode(b"no picture").decode()}
    assert "of no format that is read here" in str(await pictures.sampled(broken))
    assert "send its file" in str(await pictures.sampled([ADDRESS]))
    scored = await pictures.sampled(pictures.chunks(), prompt_logprobs=True)
    assert "token ids alone" in str(scored)
    _, model = await pictures.api.model()
    assert "its chunk expects 99" in str(await pictures.passed(model, 1, [5, 6], expected=99))
