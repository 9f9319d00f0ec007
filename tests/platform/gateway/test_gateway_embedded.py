"""The gateway without a server: models of providers are played by agents in this process."""

import asyncio
import json

import pytest
import sqlalchemy as sa
from click.testing import CliRunner
from tests.platform.gateway.gateway_server import serving
from tests.platform.gateway.test_gateway_providers import ANSWER, StandIn

from hud.cli.models.group import command
from hud.client import connect, disconnect
from hud.errors import InfrastructureFault, UsageError
from hud.inference.models import chat_model
from hud.trace import SamplingParams, ToolSpec
from hud_platform.store import tables

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    monkeypatch.setenv("STANDIN_API_KEY", "sk-secret")
    yield tmp_path
    disconnect(tmp_path)


@pytest.fixture
def provider():
    standin = StandIn()
    with serving(standin) as url:
        standin.url = url
        yield standin


def hud(*arguments):
    done = CliRunner().invoke(command, [*arguments, "--json"], catch_exceptions=False)
    return done.exit_code, done.output


async def complete(model="standin"):
    found = await chat_model(model)
    done = await found.complete(HELLO, [ToolSpec(name="look")], SamplingParams())
    await found.aclose()
    return done


def test_a_model_is_added_by_its_url_and_played_without_a_server(home, provider):
    code, told = hud(
        *("add", "standin", "--url", f"{provider.url}/v1", "--key-env", "STANDIN_API_KEY"),
        *("--upstream-model", "big/one", "--price-in", "1", "--price-out", "2"),
    )
    assert code == 0, told
    made = json.loads(told)
    assert made["kind"] == "provider"
    assert made["config"]["provider"]["price_out"] == 2
    # Every command is an event loop of its own.
    for _ in range(3):
        done = asyncio.run(complete())
        assert done.content == ANSWER["choices"][0]["message"]["content"]
    assert json.loads(provider.requests[0][2])["model"] == "big/one"
    assert provider.requests[0][1][b"authorization"] == b"Bearer sk-secret"
    assert [model["model_name"] for model in json.loads(hud("list")[1])] == ["standin"]
    platform = connect().embedded.parts
    platform.gateway.close()
    with platform.store.read() as connection:
        costs = connection.execute(sa.select(tables.requests.c.cost_usd)).scalars().all()
    assert costs == pytest.approx([1000e-6 + 400e-6] * 3)


async def test_a_provider_that_is_down_is_infrastructure_that_failed(home, monkeypatch):
    async def at_once(seconds):
        del seconds

    monkeypatch.setattr("hud.inference.retries.sleep", at_once)
    config = {"url": "http://127.0.0.1:9"}
    await connect().post("/v2/models/provide", {"name": "standin", "provider": config})
    with pytest.raises(InfrastructureFault, match="cannot be reached"):
        await complete()


async def test_what_a_provider_refuses_is_the_callers_to_mend(home, provider):
    provider.status, provider.pieces = 400, [b'{"error": {"message": "Too many tools."}}']
    config = {"url": provider.url}
    await connect().post("/v2/models/provide", {"name": "standin", "provider": config})
    with pytest.raises(UsageError, match="Too many tools"):
        await complete()


@pytest.mark.parametrize(
    "arguments",
    [
        ("add", "folder", "--name", "x", "--dialect", "openai"),
        ("add", "standin", "--url", "http://127.0.0.1:9", "--lora-rank", "4"),
        ("add", "folder"),
    ],
)
def test_options_that_do_not_go_together_are_refused(home, arguments):
    assert hud(*arguments)[0] == 2
