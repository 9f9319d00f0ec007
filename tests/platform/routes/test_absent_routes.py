"""What this server does not have it says in JSON, to whoever may ask."""

import httpx
import pytest

from hud_platform.application import create_app
from hud_platform.process.config import PlatformConfig
from hud_platform.store.tables import LOCAL_TEAM

ASKED = [
    ("GET", "/v2/imports/formats"),
    ("POST", "/v2/imports/uploads"),
    ("POST", "/v2/imports"),
    ("GET", "/v2/imports/1/report"),
    ("POST", "/v2/data/1/complete"),
    ("DELETE", "/v2/data/1"),
    ("GET", "/v2/qa/checks"),
    ("POST", "/v2/qa/runs"),
    ("GET", "/v2/qa-agents"),
    ("POST", "/v2/qa-agents/1/run-resources"),
]


@pytest.mark.parametrize(("method", "path"), ASKED)
async def test_absent_parts_are_404_with_a_sentence_and_need_a_key(tmp_path, method, path):
    app = create_app(PlatformConfig(tmp_path, keys=True))
    _, key = app.state.parts.keys.mint("test", LOCAL_TEAM, scopes=("read",))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://platform") as api:
        assert (await api.request(method, path)).status_code == 401
        headers = {"authorization": f"Bearer {key}"}
        answer = await api.request(method, path, headers=headers)
    assert answer.status_code == 404
    assert answer.json()["detail"].startswith("This server")
    app.state.parts.close()
