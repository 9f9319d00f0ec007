"""A file of a HUD_HOME that the server may not read: the answer says so, and the log of a server with keys names it."""

import errno

import httpx
import pytest

from hud_platform.application import create_app
from hud_platform.process.config import PlatformConfig
from hud_platform.store.tables import LOCAL_TEAM


@pytest.mark.parametrize("keys", [False, True])
@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
async def test_a_file_that_may_not_be_read_is_an_answer(
    tmp_path, monkeypatch, caplog, keys, number
):
    app = create_app(PlatformConfig(tmp_path, keys=keys))
    parts = app.state.parts
    secret = parts.keys.mint("admin", LOCAL_TEAM, scopes=("admin",))[1] if keys else "x"

    def closed(*_):
        raise OSError(number, "Not allowed", str(tmp_path / "models"))

    monkeypatch.setattr(type(parts.registry.of(LOCAL_TEAM)), "page", closed)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://hud") as client:
        answer = await client.get("/v2/models", headers={"authorization": f"Bearer {secret}"})
    parts.close()
    named = f"{tmp_path / 'models'} cannot be used: Not allowed. Let this user read and write it"
    said = answer.json()["detail"]
    assert answer.status_code == 500
    assert answer.headers["x-hud-error"] == "StoreError"
    assert said.startswith("The server may not read or write one of its files" if keys else named)
    assert named in caplog.text
