"""What a team may have the server call and with which key: not the server's own network, and not the server's keys."""

import http.server
import json
import socket
import stat
import threading

import aiohttp
import httpx
import pytest

from hud.errors import UsageError
from hud.inference.dialects import server_sent_events as sse
from hud.outbound import AddressRefusedError, Reach, guarded_session, networks_of, read_bounded
from hud_integrations.vllm.server import Server, ServerLost, ServerRefused
from hud_platform.access.teams import Teams
from hud_platform.application import create_app
from hud_platform.process.config import PlatformConfig

SERVER_KEY, TEAM_KEY = "server-secret-key", "team-own-key"
TEXTS = ["say red green blue yellow", "aeiou"] * 3
SIZES = {"vocab_size": 300, "hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1, "max_context": 64}
ANSWER = {
    "id": "1",
    "object": "chat.completion",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "inside"}, "finish_reason": "stop"}
    ],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}


class Inside(http.server.ThreadingHTTPServer):
    """A service of the server's own network; it writes down who asked."""

    def __init__(self, host="127.0.0.1", redirect=None):
        inside = self
        self.asked, self.redirect = [], redirect

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                self.rfile.read(int(self.headers.get("content-length", 0)))
                inside.asked.append(self.headers.get("authorization"))
                body = json.dumps(ANSWER).encode()
                self.send_response(307 if inside.redirect else 200)
                if inside.redirect:
                    self.send_header("location", inside.redirect)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self):
                self.do_POST()

            def log_message(self, *arguments):
                pass

        super().__init__((host, 0), Handler)
        self.url = f"http://{host}:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()


@pytest.fixture
def inside():
    made = Inside()
    yield made
    made.shutdown()
    made.server_close()


@pytest.fixture
def app(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", SERVER_KEY)
    monkeypatch.setenv("STANDIN_API_KEY", SERVER_KEY)
    for name in ("HUD_REACH", "HUD_SHARED_KEYS", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    app = create_app(PlatformConfig(tmp_path / "home", keys=True))
    yield app
    app.state.parts.close()


@pytest.fixture
async def ask(app):
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://hud") as client:
        keys = {}

        async def ask(method, path, body=None, *, team="others", scope="admin"):
            if (team, scope) not in keys:
                platform = app.state.parts
                identifier = Teams(platform.store).find_or_create(team).id
                keys[team, scope] = platform.keys.mint("k", identifier, scopes=(scope,))[1]
            headers = {"authorization": f"Bearer {keys[team, scope]}"}
            return await client.request(method, path, json=body, headers=headers)

        yield ask


def provider(url, **fields):
    return {"name": "p", "provider": {"url": f"{url}/v1", **fields}}


CHAT = {"model": "p", "messages": [{"role": "user", "content": "x"}]}


async def test_another_team_s_admin_cannot_send_the_server_s_keys_anywhere(ask, inside):
    for name in ("OPENAI_API_KEY", "STANDIN_API_KEY", "UNSET_API_KEY"):
        public = "https://collector.example.com"
        answer = await ask("POST", "/v2/models/provide", provider(public, key_env=name))
        assert answer.status_code == 403, answer.text
        assert f"hud secrets set {name}" in answer.json()["detail"]
    made = await ask("POST", "/v2/models/create", {"name": "m", "texts": TEXTS, "sizes": SIZES})
    servers = {
        "kind": "vllm",
        "urls": ["https://collector.example.com"],
        "key_env": "OPENAI_API_KEY",
    }
    place = f"/v2/models/{made.json()['id']}/servers"
    assert (await ask("PUT", place, {"servers": servers})).status_code == 403
    assert (await ask("GET", "/v2/models/m")).json()["config"]["servers"] is None


HERE = [
    "http://127.0.0.1:{port}",
    "http://localhost:{port}",
    "http://0.0.0.0:{port}",
    "http://2130706433:{port}",
    "http://0x7f.1:{port}",
    "http://[::1]:{port}",
    "http://[::ffff:127.0.0.1]:{port}",
    "http://[::ffff:7f00:1]:{port}",
    "http://10.0.0.1",
    "http://169.254.169.254",
    "http://[fd00:ec2::254]",
]


@pytest.mark.parametrize("url", HERE)
async def test_another_team_s_admin_cannot_have_the_server_s_network_asked(ask, inside, url):
    url = url.format(port=inside.server_port)
    answer = await ask("POST", "/v2/models/provide", provider(url))
    assert answer.status_code == 403, answer.text
    made = await ask("POST", "/v2/models/create", {"name": "m", "texts": TEXTS, "sizes": SIZES})
    place = f"/v2/models/{made.json()['id']}/servers"
    assert (
        await ask("PUT", place, {"servers": {"kind": "vllm", "urls": [url]}})
    ).status_code == 403
    assert inside.asked == []


@pytest.mark.parametrize("url", ["http://[", "http://[::1/v1", "http://[x]/"])
async def test_what_is_no_url_is_refused(ask, url):
    answer = await ask("POST", "/v2/models/provide", provider(url))
    assert answer.status_code == 400, answer.text
    assert "is no URL" in answer.json()["detail"]


async def test_a_name_that_leads_inside_later_is_refused_when_it_is_called(
    ask, inside, monkeypatch
):
    resolve, leads = socket.getaddrinfo, ["93.184.216.34"]

    def resolved(host, port, *arguments, **more):
        if host == "rebound.example.com":
            host = leads[0]
        return resolve(host, port, *arguments, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    url = f"http://rebound.example.com:{inside.server_port}"
    assert (await ask("POST", "/v2/models/provide", provider(url))).status_code == 200
    leads[0] = "127.0.0.1"
    for path, body in (
        ("/v1/chat/completions", CHAT),
        ("/v1/messages", {**CHAT, "max_tokens": 9}),  # Translated.
    ):
        answer = await ask("POST", path, body, scope="run")
        assert answer.status_code == 403, answer.text
        assert "HUD_REACH" in answer.text
    assert inside.asked == []


async def test_a_connection_of_the_first_team_s_is_not_another_s_to_use(
    ask, inside, monkeypatch, tmp_path
):
    assert (
        await ask("POST", "/v2/models/provide", provider(inside.url), team="default")
    ).status_code == 200
    monkeypatch.setenv("HUD_REACH", "127.0.0.1")
    assert (await ask("POST", "/v2/models/provide", provider(inside.url))).status_code == 200
    monkeypatch.delenv("HUD_REACH")
    assert (await ask("POST", "/v1/chat/completions", CHAT, team="default")).status_code == 200
    assert (await ask("POST", "/v1/chat/completions", CHAT)).status_code == 403
    assert len(inside.asked) == 1


async def test_redirects_are_not_followed(ask, inside, monkeypatch):
    outside = Inside("127.0.0.2", redirect=f"{inside.url}/v1/chat/completions")
    monkeypatch.setenv("HUD_REACH", "127.0.0.2/32")
    assert (await ask("POST", "/v2/models/provide", provider(outside.url))).status_code == 200
    for path, body in (
        ("/v1/chat/completions", CHAT),
        ("/v1/messages", {**CHAT, "max_tokens": 9}),
    ):
        assert (await ask("POST", path, body)).status_code == 502
    assert (len(outside.asked), inside.asked) == (2, [])
    async with guarded_session(Reach(private=True)) as session:
        with pytest.raises(ServerRefused, match="redirection"):
            await Server(outside.url, session, "key").version()
    assert inside.asked == []
    outside.shutdown()
    outside.server_close()


async def test_a_team_brings_its_own_key(app, ask, inside, monkeypatch, tmp_path):
    monkeypatch.setenv("HUD_REACH", "127.0.0.0/8")
    kept = await ask("PUT", "/v2/secrets/STANDIN_API_KEY", {"value": TEAM_KEY})
    assert kept.json() == {"name": "STANDIN_API_KEY"}
    (file,) = (tmp_path / "home" / "secrets").rglob("STANDIN_API_KEY")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    for team in ("others", "default"):
        body = provider(inside.url, key_env="STANDIN_API_KEY")
        assert (await ask("POST", "/v2/models/provide", body, team=team)).status_code == 200
        assert (await ask("POST", "/v1/chat/completions", CHAT, team=team)).status_code == 200
    assert inside.asked == [f"Bearer {TEAM_KEY}", f"Bearer {SERVER_KEY}"]
    listed = await ask("GET", "/v2/secrets")
    assert listed.json()["items"] == [{"name": "STANDIN_API_KEY"}]
    assert (await ask("GET", "/v2/secrets", team="third")).json()["items"] == []
    audit = await ask("GET", "/people/audit.json")
    for answer in (listed, audit):
        assert TEAM_KEY not in answer.text
    assert (await ask("DELETE", "/v2/secrets/STANDIN_API_KEY")).status_code == 200
    assert (await ask("DELETE", "/v2/secrets/STANDIN_API_KEY")).status_code == 404
    app.state.parts.gateway.catalogue.forget()
    answer = await ask("POST", "/v1/chat/completions", CHAT)
    assert answer.status_code == 400
    assert "hud secrets set STANDIN_API_KEY" in answer.text
    assert len(inside.asked) == 2


@pytest.mark.parametrize("scope", ["read", "run", "train"])
async def test_only_admins_keep_keys(ask, scope):
    assert (await ask("GET", "/v2/secrets", scope=scope)).status_code == 403
    body = {"value": "x"}
    assert (await ask("PUT", "/v2/secrets/A_API_KEY", body, scope=scope)).status_code == 403
    assert (await ask("DELETE", "/v2/secrets/A_API_KEY", scope=scope)).status_code == 403


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HUD_API_KEY", "x"),
        ("..%2F..%2FA_API_KEY", "x"),
        ("a_API_KEY", "x"),
        ("PATH", "x"),
        ("A_API_KEY", ""),
        ("A_API_KEY", "x\nauthorization: y"),
        ("A_API_KEY", "é"),
        ("A_API_KEY", "x" * 10_000),
    ],
)
async def test_what_is_no_key_is_not_kept(ask, tmp_path, name, value):
    answer = await ask("PUT", f"/v2/secrets/{name}", {"value": value})
    assert answer.status_code in (400, 404)
    assert list((tmp_path / "home").rglob("*API_KEY*")) == []


async def test_the_server_s_provider_keys_are_used_for_those_they_are_shared_with(
    ask, inside, monkeypatch
):
    monkeypatch.setenv("OPENAI_BASE_URL", f"{inside.url}/v1")
    chat = {**CHAT, "model": "gpt-5"}
    refused = await ask("POST", "/v1/chat/completions", chat)
    assert refused.status_code == 404
    assert "hud secrets set OPENAI_API_KEY" in refused.text
    assert (await ask("GET", "/v2/models")).json()["items"] == []
    assert (await ask("POST", "/v1/chat/completions", chat, team="default")).status_code == 200
    monkeypatch.setenv("HUD_SHARED_KEYS", "OPENAI_API_KEY")
    assert (await ask("POST", "/v1/chat/completions", chat)).status_code == 200
    assert inside.asked == [f"Bearer {SERVER_KEY}"] * 2
    assert (await ask("GET", "/v2/models")).json()["items"] != []
    # Shared is for the provider's own address.
    body = provider("https://collector.example.com", key_env="OPENAI_API_KEY")
    assert (await ask("POST", "/v2/models/provide", body)).status_code == 403


async def test_the_sampler_s_client_keeps_to_its_reach(inside):
    async with guarded_session(Reach()) as session:
        with pytest.raises(ServerLost, match="may not call"):
            await Server(inside.url, session, SERVER_KEY).version()
        with pytest.raises(aiohttp.ClientConnectorError) as refused:
            await session.get(f"http://localhost:{inside.server_port}")
        assert isinstance(refused.value.os_error, AddressRefusedError)
    assert inside.asked == []


@pytest.mark.parametrize(
    ("address", "public", "private"),
    [
        ("93.184.216.34", True, True),
        ("2606:2800:220:1::1", True, True),
        ("127.0.0.1", False, True),
        ("127.8.8.8", False, True),
        ("0.0.0.0", False, True),
        ("10.1.2.3", False, True),
        ("172.16.0.1", False, True),
        ("192.168.1.1", False, True),
        ("100.64.0.1", False, True),
        ("::1", False, True),
        ("fd12::1", False, True),
        ("fec0::1", False, True),
        ("::ffff:10.0.0.1", False, True),
        ("::ffff:93.184.216.34", True, True),
        ("64:ff9b::7f00:1", False, True),
        ("2002:7f00:1::", False, True),
        ("169.254.1.1", False, False),
        ("169.254.169.254", False, False),
        ("::ffff:169.254.169.254", False, False),
        ("64:ff9b::a9fe:a9fe", False, False),
        ("fd00:ec2::254", False, False),
        ("100.100.100.200", False, False),
        ("168.63.129.16", False, False),
        ("fe80::1%eth0", False, False),
        ("224.0.0.1", False, False),
        ("ff02::1", False, False),
    ],
)
def test_which_addresses_are_within_reach(address, public, private):
    assert Reach().allows(address) == public
    assert Reach(private=True).allows(address) == private
    assert Reach(networks=networks_of("0.0.0.0/0, ::/0")).allows(address)


def test_a_network_that_is_none_is_named():
    assert networks_of("10.0.0.5/8,  ::1") == networks_of("10.0.0.0/8,::1/128")
    with pytest.raises(UsageError, match="HUD_REACH.*vllm"):
        networks_of("vllm.internal")


async def test_answers_have_a_bound(inside):
    async with guarded_session(Reach(private=True)) as session:
        async with session.get(inside.url) as answer:
            assert json.loads(await read_bounded(answer)) == ANSWER
        async with session.get(inside.url) as answer:
            with pytest.raises(aiohttp.ClientPayloadError, match="larger"):
                await read_bounded(answer, most=10)


@pytest.mark.parametrize("piece", [b"data: xxxxxxxx\n", b"xxxxxxxxxxxxxxxx"])
async def test_an_event_without_end_is_given_up(monkeypatch, piece):
    monkeypatch.setattr(sse, "MOST_EVENT_BYTES", 10_000)
    taken = 0

    async def pieces():
        nonlocal taken
        while True:
            taken += len(piece)
            assert taken < 50_000
            yield piece

    with pytest.raises(sse.EventTooLargeError):
        async for _ in sse.data_of(pieces()):
            raise AssertionError("an event that never ended")
