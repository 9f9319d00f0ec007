"""A database that goes away in the middle: what is sent is answered 503, nobody is told where it is, and it comes back."""

import logging
import socket
import threading

import httpx
import pytest
import sqlalchemy as sa
from tests.conftest import DATABASE, schema_url
from tests.platform.store.test_telemetry import agent_step, span

from hud.trace import new_id
from hud_platform.application import create_app
from hud_platform.process.config import PlatformConfig
from hud_platform.store.tables import LOCAL_TEAM

pytestmark = pytest.mark.skipif(DATABASE is None, reason="needs HUD_TEST_DATABASE_URL")


class Wire:
    """Carries connections to the database, until it is cut."""

    def __init__(self, url):
        self.there = (url.host, url.port or 5432)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.ends, self.whole = [], True
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near = self.listener.accept()[0]
            except OSError:
                return
            if not self.whole:
                near.close()
                continue
            far = socket.create_connection(self.there)
            self.ends += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one, other):
        try:
            while data := one.recv(65536):
                other.sendall(data)
        except OSError:
            pass
        other.close()

    def cut(self):
        self.whole = False
        for end in self.ends:
            end.close() if end.fileno() < 0 else end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
async def setup(tmp_path):
    url = sa.make_url(schema_url(tmp_path))
    wire = Wire(url)
    through = url.set(host="127.0.0.1", port=wire.port)
    database = through.render_as_string(hide_password=False)
    app = create_app(PlatformConfig(tmp_path, database=database, keys=True))
    key = app.state.parts.keys.mint("k", LOCAL_TEAM, scopes=("admin",))[1]
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://p", headers=headers) as api:
        assert (await api.get("/v2/jobs")).status_code == 200
        yield api, wire, url
    app.state.parts.close()
    wire.listener.close()


def secrets_of(url, wire):
    return [f":{wire.port}", "127.0.0.1", f"{url.username}@", url.database]


@pytest.mark.parametrize("known", [True, False], ids=["key known", "key unknown"])
async def test_a_cut_connection_is_503_and_comes_back(setup, known, caplog):
    api, wire, url = setup
    if not known:
        api.headers["authorization"] = "Bearer hud_nobody"
    body = {"telemetry": [span(agent_step(1))]}
    path = f"/v3/api/trace/{new_id()}/telemetry-upload"
    wire.cut()
    with caplog.at_level(logging.ERROR):
        for answer in (
            await api.post(path, json=body),
            await api.get("/v2/jobs"),
            await api.get("/jobs.json"),
            await api.post("/v1/chat/completions", json={"model": "m", "messages": []}),
            await api.post("/auth/device/code", json={}),
        ):
            assert answer.status_code == 503, answer.text
            assert int(answer.headers["retry-after"]) >= 1
            for secret in secrets_of(url, wire):
                assert secret not in answer.text
        ready = await api.get("/readyz")
    assert ready.status_code == 503
    assert ready.json()["store"] == "unavailable"
    assert str(wire.port) in caplog.text, "the operator is told where"
    wire.whole = True
    if known:
        assert (await api.post(path, json=body)).status_code == 200
        assert (await api.get("/readyz")).json()["store"] == "ok"
