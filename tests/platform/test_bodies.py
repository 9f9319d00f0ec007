"""No route takes a body without end into memory, with or without a key, and none breaks on text that is none."""

import gzip
import re
import zlib

import httpx
import pytest

from hud import exact_json
from hud.trace import new_id
from hud_dashboard.pages import ROUTERS
from hud_platform import routes
from hud_platform.access import bodies
from hud_platform.access.bodies import READING, RUNNING, WITHOUT_KEY, is_inference, json_problem
from hud_platform.access.teams import Teams
from hud_platform.application import create_app
from hud_platform.plugs.route_plugs import route_plugs
from hud_platform.process.config import PlatformConfig
from hud_platform.store.tables import LOCAL_TEAM

CHUNK = b"x" * 65536
SCOPES = ("read", "run", "admin")


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    app = create_app(PlatformConfig(tmp_path_factory.mktemp("home"), keys=True))
    mint = app.state.parts.keys.mint
    app.keys = {scope: mint(scope, LOCAL_TEAM, scopes=(scope,))[1] for scope in SCOPES}
    yield app
    app.state.parts.close()


def paths():
    """Every path of the application and of the pages that takes a body."""
    writing = {"POST", "PUT", "PATCH", "DELETE"}
    foreign = [router for plug in route_plugs().values() for router in plug.routers]
    for router in (*routes.first_routers(), *foreign, *routes.ROUTERS, *ROUTERS):
        for route in router.routes:
            for method in sorted(writing & (getattr(route, "methods", None) or set())):
                yield method, re.sub(r"\{[^}]*\}", "0" * 32, route.path)


PATHS = sorted(set(paths()))


class Attack:
    """One request whose body has no end; counts what was taken of it."""

    def __init__(self, app, method, path, key=None, headers=(), chunk=CHUNK, most=256 << 20):
        sent = [
            (b"content-type", b"application/json"),
            (b"transfer-encoding", b"chunked"),
            *headers,
        ]
        if key:
            sent.append((b"authorization", f"Bearer {key}".encode()))
        self.scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"expires=1&signature=x&worker=w&attempt=1",
            "scheme": "http",
            "headers": sent,
            "client": ("10.1.1.1", 1),
            "server": ("platform", 80),
        }
        self.app, self.chunk, self.most = app, chunk, most
        self.taken = 0
        self.status = None

    async def receive(self):
        if self.status is not None:
            return {"type": "http.disconnect"}
        self.taken += len(self.chunk)
        assert self.taken <= self.most, f"{self.scope['path']} takes everything"
        return {"type": "http.request", "body": self.chunk, "more_body": True}

    async def send(self, message):
        self.status = message.get("status", self.status)

    async def run(self):
        await self.app(self.scope, self.receive, self.send)
        return self


@pytest.mark.parametrize(("method", "path"), PATHS)
async def test_no_route_takes_a_body_without_end(app, method, path):
    stranger = await Attack(app, method, path).run()
    assert stranger.taken <= WITHOUT_KEY + len(CHUNK)
    assert 400 <= stranger.status < 500
    reader = await Attack(app, method, path, app.keys["read"]).run()
    assert reader.taken <= READING + len(CHUNK)
    assert 400 <= reader.status < 500


def test_there_are_routes_to_attack():
    known = {path for _, path in PATHS}
    assert {"/auth/device/code", "/v1/chat/completions", "/v2/ingest", "/signin"} <= known
    assert len(PATHS) > 80


async def test_bodies_grow_with_the_scope_and_end_there(app):
    runner = await Attack(app, "POST", "/v2/ingest", app.keys["run"]).run()
    assert READING < runner.taken <= RUNNING + len(CHUNK)
    assert runner.status == 413
    for path in ("/v2/ingest", "/v1/messages"):
        declared = [(b"content-length", b"%d" % (RUNNING + 1))]
        honest = await Attack(app, "POST", path, app.keys["run"], declared).run()
        assert (honest.status, honest.taken) == (413, 0)


async def test_bodies_together_have_a_bound(app, monkeypatch):
    monkeypatch.setattr(bodies, "TOGETHER", 4 << 20)
    inner = []

    class Second(Attack):
        async def receive(self):
            if self.taken == 3 << 20 and not inner:
                other = Attack(app, "POST", "/v2/ingest", app.keys["run"], most=8 << 20)
                inner.append(await other.run())
            return await super().receive()

    await Second(app, "POST", "/v2/ingest", app.keys["run"], most=80 << 20).run()
    assert inner[0].status == 503
    assert inner[0].taken <= 2 << 20


async def test_the_bodies_of_one_team_leave_room_for_another_s(app, monkeypatch):
    """Seventeen bodies that dripped filled the memory of all: every other team's requests were answered 503."""
    monkeypatch.setattr(bodies, "TOGETHER", 8 << 20)
    monkeypatch.setattr(bodies, "TOGETHER_OF_TEAM", 4 << 20)
    parts = app.state.parts
    other = Teams(parts.store).find_or_create("others").id
    keys = {LOCAL_TEAM: app.keys["run"], other: parts.keys.mint("k", other, scopes=("run",))[1]}
    inner = {}

    class Dripping(Attack):
        async def receive(self):
            if self.taken == 3 << 20 and not inner:
                for team, key in keys.items():
                    small = Attack(app, "POST", "/v2/ingest", key, most=8 << 20)
                    inner[team] = await small.run()
            return await super().receive()

    await Dripping(app, "POST", "/v2/ingest", app.keys["run"], most=80 << 20).run()
    assert inner[LOCAL_TEAM].status == 503
    assert inner[LOCAL_TEAM].taken <= 2 << 20
    assert inner[other].taken > 4 << 20, "refused by the limit of all bodies, not by another team's"


def packed(data, end=True):
    squeezed = zlib.compressobj(wbits=31)
    return squeezed.compress(data) + squeezed.flush(zlib.Z_FINISH if end else zlib.Z_SYNC_FLUSH)


@pytest.mark.parametrize("kind", ["nothing", "after"])
async def test_packed_bodies_that_never_end_are_refused(app, monkeypatch, kind):
    monkeypatch.setattr("hud_platform.routes.telemetry.MOST_BYTES", 4 << 20)
    start = packed(b"", end=False) if kind == "nothing" else packed(b"{}")
    chunk = b"\x00\x00\x00\xff\xff" * 20_000 if kind == "nothing" else CHUNK

    class Packed(Attack):
        async def receive(self):
            if self.taken == 0:
                self.taken = 1
                return {"type": "http.request", "body": start, "more_body": True}
            return await super().receive()

    path = f"/v3/api/trace/{new_id()}/telemetry-upload"
    headers = [(b"content-encoding", b"gzip")]
    attack = Packed(app, "POST", path, app.keys["run"], headers, chunk, most=16 << 20)
    assert (await attack.run()).status == 400


@pytest.fixture
async def api(app):
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    headers = {"authorization": f"Bearer {app.keys['admin']}"}
    async with httpx.AsyncClient(
        transport=transport, base_url="http://platform", headers=headers
    ) as client:
        yield client


HALVES = [
    rb'{"name": "\ud800", "texts": ["\ud800"]}',
    rb'{"name": "a\udc00b", "model": "\ud800", "x": NaN}',
    b'{"name": "\xed\xa0\x80"}',
    '{"name": "\ud800"}'.encode("utf-16-le", "surrogatepass"),
    b'{"name": "\xff"}',
]


@pytest.mark.parametrize("body", HALVES, ids=["high", "low", "utf-8", "utf-16", "latin-1"])
async def test_half_a_surrogate_pair_is_refused_by_every_route(api, body):
    for method, path in PATHS:
        for kind in ("application/json", "application/problem+json"):
            answer = await api.request(method, path, content=body, headers={"content-type": kind})
            assert 400 <= answer.status_code < 500, (method, path, answer.text)
            if not is_inference(path) and not path.endswith("upload") and "/uploads/" not in path:
                assert "JSON" in answer.text or "surrogate" in answer.text, (method, path)


@pytest.mark.parametrize("path", ["/v2/projects", "/v1/chat/completions", "/api/v1/asample"])
async def test_json_of_many_lists_is_refused_before_it_is_parsed(api, path):
    """Each list of two bytes takes 64 bytes of memory."""
    body = b'{"model":[' + b"[]," * exact_json.MOST_CONTAINERS + b"1]}"
    kind = {"content-type": "application/json"}
    answer = await api.post(path, content=body, headers=kind)
    assert answer.status_code == 400
    assert "lists and objects" in answer.text


STORED = {
    "/v2/training-runs": b'{"model": "m", "config": {"a": %s}, "state": {}}',
    "/v2/tasks/upload": b'{"taskset_name": "s", "tasks": [{"name": "r", "env": {"name": "e"}, "task_id": "t", "args": {"a": %s}}]}',
    f"/v3/api/trace/{'1' * 32}/telemetry-upload": b'{"telemetry": [{"attributes": {"a": %s}}]}',
    "/api/v1/create_session": b'{"user_metadata": {"a": %s}}',
}


@pytest.mark.parametrize("depth", [240, 300, 900])
@pytest.mark.parametrize("path", STORED)
async def test_a_body_that_no_answer_could_hold_is_refused(api, path, depth):
    """Answers wrap what is stored, and have at most 254 levels: lists with such a value could not be read."""
    body = STORED[path] % (b"[" * depth + b"1" + b"]" * depth)
    answer = await api.post(path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text
    assert "nested more than 230 levels" in answer.text


@pytest.mark.parametrize("depth", [240, 300, 900])
async def test_a_step_in_text_that_is_nested_too_deep_is_kept_as_a_span(api, depth):
    trace, nested = new_id(), "[" * depth + "]" * depth
    attributes = {
        "hud.schema": "hud.step.v1",
        "hud.payload": f'{{"step_id": 0, "message": {nested}}}',
    }
    body = {"telemetry": [{"name": "x", "attributes": attributes}]}
    answer = await api.post(f"/v3/api/trace/{trace}/telemetry-upload", json=body)
    assert answer.status_code == 200, answer.text
    for path in (f"/v2/trace/{trace}", f"/v2/trace/{trace}/full", f"/v2/trace/{trace}/spans"):
        assert (await api.get(path)).status_code == 200


@pytest.mark.parametrize("span", [b"{}", b'{"a":[[],[],[],[],[],[],[],[],[],[]]}'])
async def test_an_upload_of_many_spans_is_refused(api, span):
    trace, count = (
        new_id(),
        exact_json.MOST_CONTAINERS // span.count(b"[") if b"[" in span else 60_000,
    )
    body = b'{"telemetry":[' + (span + b",") * count + b"{}]}"
    packed = {"content-encoding": "gzip"}
    path = f"/trace/{trace}/telemetry-upload"
    answer = await api.post(path, content=gzip.compress(body), headers=packed)
    assert answer.status_code == 400
    assert "at most" in answer.text or "more than" in answer.text
    assert (await api.get(f"/v2/trace/{trace}")).status_code == 404


@pytest.mark.slow
async def test_forms_and_addresses_of_odd_characters_break_nothing(api):
    odd = "%ED%A0%80%FF%00"
    for method, path in PATHS:
        form = {"content-type": "application/x-www-form-urlencoded"}
        body = "&".join(f"{name}={odd}" for name in ("code", "key", "name", "decision", "next"))
        answer = await api.request(method, path, content=body, headers=form)
        assert answer.status_code < 500, (method, path, answer.text)
        split = {"content-type": "multipart/form-data; boundary=b; charset=raw_unicode_escape"}
        parts = "".join(
            f'--b\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n\\ud800\r\n'
            for name in ("code", "key", "name", "decision", "next")
        )
        answer = await api.request(method, path, content=parts + "--b--\r\n", headers=split)
        assert answer.status_code < 500, (method, path, answer.text)
    for path in ("/v2/jobs", "/v2/models/resolve", "/v2/projects", "/v2/tasksets", "/jobs.json"):
        for name in ("search", "model", "name", "sort", "cursor", "api_key"):
            answer = await api.get(f"{path}?{name}={odd}")
            assert answer.status_code < 500, (path, name, answer.text)
        assert (await api.get(f"{path}/{odd}")).status_code < 500


@pytest.mark.parametrize(
    ("body", "fine"),
    [
        (rb'"\ud83d\ude00"', True),
        (rb'"\\ud800"', True),
        (rb'"\\\ud800"', False),
        (rb'"\ud83d\ude00\ude00"', False),
        (rb'"\\ud83d\ude00"', False),
        (rb'"\uD800\u0041"', False),
        (rb'"\ud800\ud800\udc00"', False),
        ('"\U0001f600é"'.encode(), True),
        (b'"\xed\xa0\x80"', False),
        (b'"\x00"', False),
    ],
)
def test_which_json_is_text(body, fine):
    assert (json_problem(body) is None) == fine


async def test_a_large_body_within_its_limit_arrives_whole(api):
    lines = gzip.decompress(gzip.compress(b"not a line\n" * 200_000))
    answer = await api.post("/v2/ingest", content=lines)
    assert answer.status_code == 200
    assert len(answer.json()["damaged"]) == 200_000
