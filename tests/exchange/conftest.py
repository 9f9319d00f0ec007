"""Fixtures of imports."""

import asyncio

import pytest

import hud.client
from hud.cli.main import run
from hud.client import connect


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    yield tmp_path / "home"
    hud.client.disconnect(tmp_path / "home")


@pytest.fixture
def imported(home):
    """Return a function that imports a path and returns its runs, each with its trace, in the order of their foreign ids."""

    async def read():
        client, runs = connect(), []
        for job in (await client.get("/v2/jobs"))["items"]:
            rows = (await client.get(f"/v2/jobs/{job['id']}/traces"))["items"]
            runs += [await client.get(f"/v2/trace/{row['trace_id']}/full") for row in rows]
        return sorted(runs, key=lambda full: full["run"]["foreign_id"])

    def import_path(path, *options):
        assert run(["import", str(path), *options]) == 0
        return asyncio.run(read())

    return import_path
