"""What of models only an admin may do, and what no answer tells: the server's disk."""

from __future__ import annotations

import httpx
import pytest

from hud_platform.access.teams import Teams
from hud_platform.application import create_app
from hud_platform.process.config import PlatformConfig

TEXTS = ["say red green blue yellow", "aeiou"] * 3
SIZES = {"vocab_size": 300, "hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1, "max_context": 64}


@pytest.fixture
def app(tmp_path):
    app = create_app(PlatformConfig(tmp_path / "home", keys=True))
    yield app
    app.state.parts.close()


@pytest.fixture
def ask(app):
    async def ask(method, path, body=None, *, team="ours", scope="train"):
        platform = app.state.parts
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
    source = app.state.parts.registry.models()[0].folder
    add = {"source": str(source), "name": "stolen"}
    assert (await ask("POST", "/v2/models/add", add)).status_code == 403
    assert not (tmp_path / "taken").exists()


async def test_another_teams_files_cannot_be_added_even_by_an_admin(app, ask, tmp_path):
    await ask("POST", "/v2/models/create", {"name": "m", "texts": TEXTS, "sizes": SIZES})
    (model,) = app.state.parts.registry.models()
    around = tmp_path / "around"
    around.symlink_to(model.folder)
    for source in (model.folder, around):
        add = {"source": str(source), "name": "stolen"}
        refused = await ask("POST", "/v2/models/add", add, team="others", scope="admin")
        assert refused.status_code == 403, refused.text
        assert "first team" in refused.json()["detail"]
        refused = await ask("POST", "/v2/models/add", add, team="default", scope="admin")
        assert refused.status_code == 400, refused.text
        assert "models fork" in refused.json()["detail"]


async def test_another_team_s_admin_reads_and_writes_no_folder_of_the_server(ask, tmp_path):
    from hud.engine.tiny_model import create_tiny

    there = tmp_path / "there"
    create_tiny(there, TEXTS, **SIZES)
    (tmp_path / "empty").mkdir()
    for source in (there, tmp_path / "empty", tmp_path / "none", "/etc", "~", ".", "../x", ""):
        add = {"source": str(source), "name": "stolen"}
        refused = await ask("POST", "/v2/models/add", add, team="others", scope="admin")
        assert refused.status_code == 403, refused.text
        assert "first team" in refused.json()["detail"]
    made = await ask(
        "POST",
        "/v2/models/create",
        {"name": "m", "texts": TEXTS, "sizes": SIZES},
        team="others",
    )
    export = f"/v2/models/{made.json()['id']}/export"
    for folder in (tmp_path / "taken", tmp_path / "empty", there):
        body = {"folder": str(folder)}
        refused = await ask("POST", export, body, team="others", scope="admin")
        assert refused.status_code == 403, refused.text
    assert not (tmp_path / "taken").exists()
    assert list((tmp_path / "empty").iterdir()) == []
    add = {"source": str(there), "name": "ours"}
    first = await ask("POST", "/v2/models/add", add, team="default", scope="admin")
    assert first.status_code == 200, first.text


async def test_another_team_gets_of_the_hub_what_anybody_can_read(ask, monkeypatch, tmp_path):
    """A private model that the server fetched with its token lies in the cache; it is not theirs."""
    import huggingface_hub

    asked = []

    def check(api, repo_id, **more):
        asked.append((api.token, repo_id))
        raise OSError("401: this repository is private")

    monkeypatch.setattr(huggingface_hub.HfApi, "auth_check", check)
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("it was fetched")
    )
    add = {"source": "company/private", "name": "stolen"}
    refused = await ask("POST", "/v2/models/add", add, team="others", scope="admin")
    assert refused.status_code == 400
    assert "401" in refused.json()["detail"]
    assert asked == [(False, "company/private")]


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
