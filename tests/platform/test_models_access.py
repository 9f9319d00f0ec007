"""What of models only an admin may do, and what no answer tells: the server's disk."""

from __future__ import annotations

import httpx
import pytest

from hud.platform.access.teams import Teams
from hud.platform.application import PlatformConfig, create_app

TEXTS = ["say red green blue yellow", "aeiou"] * 3
SIZES = {"vocab_size": 300, "hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1, "max_context": 64}


@pytest.fixture
def app(tmp_path):
    app = create_app(PlatformConfig(tmp_path / "home", keys=True))
    yield app
    app.state.platform.close()


@pytest.fixture
def ask(app):
    async def ask(method, path, body=None, *, team="ours", scope="train"):
        platform = app.state.platform
        identifier = Teams(platform.store).find_or_create(team).id
        key = platform.keys.mint("k", identifier, scopes=(scope,))[1]
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://hud") as client:
            headers = {"authorization": f"Bearer {key}"}
            return await client.request(method, path, json=body, headers=headers)

    return ask


async def test_folders_of_the_server_are_read_and_written_for_admins_alone(app, ask, tmp_path):
    made = await ask("POST", "/v2/models/create", {"name": "m", "texts": TEXTS, "sizes": SIZES})
    assert made.status_code == 200
    target = str(tmp_path / "taken")
    export = f"/v2/models/{made.json()['id']}/export"
    assert (await ask("POST", export, {"folder": target})).status_code == 403
    source = app.state.platform.registry.models()[0].folder
    add = {"source": str(source), "name": "stolen"}
    assert (await ask("POST", "/v2/models/add", add)).status_code == 403
    assert not (tmp_path / "taken").exists()


async def test_another_teams_files_cannot_be_added_even_by_an_admin(app, ask, tmp_path):
    await ask("POST", "/v2/models/create", {"name": "m", "texts": TEXTS, "sizes": SIZES})
    (model,) = app.state.platform.registry.models()
    around = tmp_path / "around"
    around.symlink_to(model.folder)
    for source in (model.folder, around):
        add = {"source": str(source), "name": "stolen"}
        refused = await ask("POST", "/v2/models/add", add, team="others", scope="admin")
        assert refused.status_code == 400, refused.text
        assert "models fork" in refused.json()["detail"]


async def test_no_answer_names_the_servers_folders(ask, tmp_path):
    made = await ask("POST", "/v2/models/create", {"name": "m", "texts": TEXTS, "sizes": SIZES})
    fork = {"source_model_id": made.json()["id"], "name": "f"}
    answers = [
        made,
        await ask("POST", "/v2/models/fork", fork),
        await ask("GET", "/v2/models"),
        await ask("GET", f"/v2/models/{made.json()['id']}"),
    ]
    for answer in answers:
        assert answer.status_code == 200
        assert str(tmp_path) not in answer.text
