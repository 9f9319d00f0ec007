"""Checkpoints of another team: whoever knows an id of one neither samples, scores, forks nor serves its weights."""

import asyncio

import httpx
import pytest
from tests.security.server import bearer

from hud.client.contributor import Contributor
from hud.errors import NotFoundError
from hud.learning.datum_calls import SavedState, SaveRequest
from hud.learning.training_calls import OpenRequest
from hud_platform.access.teams import Teams
from hud_platform.application import create_app
from hud_platform.models.records import ModelConfig
from hud_platform.process.config import PlatformConfig
from hud_platform.store.tables import LOCAL_TEAM

TEXTS = ["red green blue yellow", "what colour is it?"] * 3
SIZES = {"vocab_size": 300, "hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1, "max_context": 64}
REFUSED = (400, 404, 422)


@pytest.fixture
async def parts(tmp_path):
    app = create_app(PlatformConfig(tmp_path, keys=True))
    yield app.state.parts
    await app.state.parts.service("tinker").futures.close()
    await asyncio.to_thread(app.state.parts.close)


@pytest.fixture
async def http(parts):
    app = create_app(PlatformConfig(parts.config.home, keys=True))
    transport = httpx.ASGITransport(app=app)
    others = Teams(parts.store).find_or_create("others").id
    secret = parts.keys.mint("admin", others, scopes=("admin",))[1]
    headers = {k.decode(): v.decode() for k, v in bearer(secret)}
    async with httpx.AsyncClient(
        transport=transport, base_url="http://hud", headers=headers, timeout=100
    ) as client:
        yield client
    await app.state.parts.service("tinker").futures.close()
    await asyncio.to_thread(app.state.parts.close)


@pytest.fixture
async def theirs(parts):
    """A checkpoint of the first team."""
    registry = parts.registry.of(LOCAL_TEAM)
    model = registry.create("secret", TEXTS, sizes=SIZES, seed=7)
    client = Contributor("a", "a")
    await parts.engine.call(model, OpenRequest(), client)
    saved = await parts.engine.call(model, SaveRequest(), client)
    return SavedState.model_validate_json(saved).checkpoint_id


async def test_a_sampling_client_names_checkpoints_of_its_own_model_alone(http, theirs):
    made = await http.post(
        "/v2/models/create", json={"name": "own", "texts": TEXTS, "sizes": SIZES}
    )
    identifier = f"x:sample:0:{made.json()['id'].replace('-', '')}:{theirs}"
    body = {
        "sampling_session_id": identifier,
        "seq_id": 1,
        "prompt": {"chunks": [{"tokens": [1, 2, 3]}]},
        "sampling_params": {"max_tokens": 2},
        "prompt_logprobs": True,
    }
    began = await http.post("/api/v1/asample", json=body)
    if began.status_code == 200:
        request = {"request_id": began.json()["request_id"]}
        began = await http.post("/api/v1/retrieve_future", json=request)
    assert began.status_code in REFUSED, began.content
    assert (await http.get(f"/api/v1/samplers/{identifier}")).status_code in REFUSED


async def test_a_new_model_has_no_origin_of_another_team(http, theirs):
    config = {"origin_checkpoint": theirs}
    body = {"name": "own", "texts": TEXTS, "sizes": SIZES, "config": config}
    made = await http.post("/v2/models/create", json=body)
    assert theirs not in made.text
    moved = await http.put("/v2/models/own/head", json={"checkpoint_id": theirs})
    assert moved.status_code in REFUSED, moved.text
    forked = {"source_model_id": "own", "name": "fork", "config": {**config, "training": "lora"}}
    await http.post("/v2/models/fork", json=forked)
    for name in ("own", "fork"):
        moved = await http.put(f"/v2/models/{name}/head", json={"checkpoint_id": "base"})
        assert theirs not in moved.text
        shown = await http.get(f"/v2/models/{name}")
        assert theirs not in shown.text


async def test_a_model_in_the_gateway_has_checkpoints_of_its_own_alone(http, theirs):
    await http.post("/v2/models/create", json={"name": "own", "texts": TEXTS, "sizes": SIZES})
    turn = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    named = {**turn, "model": f"own@{theirs}"}
    assert (await http.post("/v1/chat/completions", json=named)).status_code in REFUSED
    named = {**turn, "model": "own", "checkpoint": theirs}
    assert (await http.post("/v1/chat/completions", json=named)).status_code in (200, *REFUSED)


async def test_the_weights_of_a_model_are_its_team_s(parts, theirs):
    others = Teams(parts.store).find_or_create("others").id
    registry = parts.registry.of(others)
    own = registry.create("own", TEXTS, sizes=SIZES, config=ModelConfig(origin_checkpoint=theirs))
    assert own.config.origin_checkpoint is None
    with pytest.raises(NotFoundError, match="There is no checkpoint"):
        registry.weights(own, theirs)
