"""The documentation at /docs/mcp of a real `hud up`: for the official client, without a key, as the page /docs is."""

import asyncio

import httpx
import pytest
from mcp import Client
from tests.fleet.live_server import LiveServer

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    made = LiveServer(tmp_path_factory.mktemp("docs") / "home", "--workers", "0")
    made.start()
    yield made
    assert made.stop() == 0


def text(result):
    return "".join(block.text for block in result.content)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_official_client_searches_and_reads_without_a_key(server, mode):
    async with Client(f"{server.url}/docs/mcp", mode=mode) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["search", "read"]
        found = await client.call_tool("search", {"query": "hud keys create"})
        best = found.structured_content["results"][0]
        assert (best["page"], best["heading"]) == ("commands/keys", "hud keys create")
        page = await client.call_tool("read", {"page": "platform"})
        assert text(page).startswith("# The platform\n")
        unknown = await client.call_tool("read", {"page": "platfrom"})
        assert unknown.is_error
        assert text(unknown).startswith(
            "The documentation has no page 'platfrom'; did you mean 'platform'"
        )


@pytest.mark.slow
async def test_many_ask_at_once_and_none_needs_a_session(server):
    async def ask(word):
        async with Client(f"{server.url}/docs/mcp") as client:
            return text(await client.call_tool("search", {"query": word, "limit": 1}))

    answers = await asyncio.gather(*(ask(word) for word in ["losses", "keys", "losses", "keys"]))
    assert answers[0] == answers[2] != answers[1] == answers[3]


@pytest.mark.slow
def test_it_answers_posts_only_and_opens_nothing_else(server):
    with httpx.Client(base_url=server.url) as api:
        assert api.get("/docs/mcp").status_code == 405
        assert api.delete("/docs/mcp").status_code == 405
        assert api.post("/docs/mcp/../../v2/jobs").status_code == 401
        assert api.post("/docs/other").status_code == 405
        assert api.post("/docs/mcp", content=b"no json").status_code in (400, 406)
        large = {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
        }
        assert api.post("/docs/mcp", content=b" " * 200_000, headers=large).status_code == 413
        assert "/v2/jobs" in api.get("/docs/routes").text
        assert "/docs/mcp" not in api.get("/openapi.json").json()["paths"]
