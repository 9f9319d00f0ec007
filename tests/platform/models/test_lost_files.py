"""A registered model whose own files are lost or damaged: the answer names the file and what to do."""

import httpx
import pytest

from hud_platform.application import create_app
from hud_platform.process.config import PlatformConfig
from hud_platform.store.tables import LOCAL_TEAM

TEXTS = ["red green blue yellow", "what colour is it?"] * 3
SIZES = {"vocab_size": 300, "hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1, "max_context": 64}
REQUEST = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
@pytest.mark.parametrize("damage", ["lost", "damaged"])
async def test_a_file_that_a_model_lost_is_named_with_its_cure(tmp_path, name, damage):
    app = create_app(PlatformConfig(tmp_path))
    model = app.state.parts.registry.of(LOCAL_TEAM).create("m", TEXTS, sizes=SIZES)
    if damage == "lost":
        (model.folder / name).unlink()
    else:
        (model.folder / name).write_bytes(b"\xff\x00{[")
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://hud") as client:
        answer = await client.post("/chat/completions", json=REQUEST)
        shape = await client.get("/v2/models/m/architecture")
    app.state.parts.close()
    said = [answer.json()["detail"]]
    assert answer.status_code == 500, "The model is there: 404 would say that it is not."
    if name == "config.json":
        said.append(shape.json()["detail"])
        assert shape.status_code == 500
    for sentence in said:
        assert name in sentence or "no weights" in sentence
        assert "Restore it" in sentence
        assert damage != "lost" or "hud models rm m" in sentence
