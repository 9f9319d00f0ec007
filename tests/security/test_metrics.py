"""The metrics, which need no key, name nobody's models and paths, and do not grow with what callers make up."""

import pytest
from tests.platform.test_outbound import Inside
from tests.security.server import AttackedServer, bearer


@pytest.fixture
def inside(monkeypatch):
    made = Inside()
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    monkeypatch.setenv("OPENAI_BASE_URL", f"{made.url}/v1")
    yield made
    made.shutdown()
    made.server_close()


@pytest.fixture
def world(tmp_path):
    made = AttackedServer(tmp_path / "home")
    yield made
    made.parts.close()


async def test_metrics_name_no_model_and_grow_with_none_that_is_made_up(world, inside):
    key = bearer(world.key())
    provided = {"name": "sesame-model", "provider": {"url": f"{inside.url}/v1"}}
    assert (await world.ask("POST", "/v2/models/provide", key, provided)).status == 200
    sizes = []
    for number in range(12):
        for name in ("sesame-model", f"gpt-sesame-{number}"):
            asked = {"model": name, "messages": [{"role": "user", "content": "x"}]}
            answer = await world.ask("POST", "/v1/chat/completions", key, asked)
            assert answer.status == 200, answer.text
        said = (await world.ask("GET", "/metrics")).text
        sizes.append(said.count("\n"))
    assert "sesame" not in said
    assert 'hud_tokens_total{kind="prompt",model="openai"} 24.0' in said
    assert len(set(sizes[1:])) == 1  # The first one does not count itself.


async def test_metrics_do_not_grow_with_paths_and_methods_that_are_made_up(world):
    key = bearer(world.key())
    sizes = []
    for number in range(12):
        for method in ("GET", "POST", f"M{number}"):
            await world.ask(method, f"/sesame/{number}", key)
            await world.ask(method, f"/v2/jobs/{number:032d}", key)
        sizes.append((await world.ask("GET", "/metrics")).text)
    assert "sesame" not in sizes[-1]
    assert sizes[1].count("\n") == sizes[-1].count("\n")
