"""Environments: what they offer, their builds and logs, and what of them runs."""

import asyncio
import subprocess
import sys
from datetime import UTC, datetime

import pytest
import sqlalchemy as sa
from tests.dashboard.conftest import sign_in

from hud.trace import dashed, new_id
from hud_platform.access.teams import Teams
from hud_platform.environments.registry import Environments
from hud_platform.store import tables
from hud_platform.store.tables import LOCAL_TEAM

MANIFEST = {
    "name": "shop",
    "tasks": [
        {
            "id": "buy",
            "description": "Buy <b>fruit</b>.",
            "args": {
                "type": "object",
                "properties": {"item": {"type": "string", "enum": ["pear", "fig"]}},
                "required": ["item"],
            },
        }
    ],
    "tools": [
        {
            "name": "price",
            "description": "What something costs.",
            "parameters": {
                "type": "object",
                "properties": {"of": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
            },
        }
    ],
    "capabilities": [{"name": "shell"}],
}


def build(store, status="SUCCEEDED", *, team=LOCAL_TEAM, version=None, lines=(), **more):
    """A build of the environment "shop", as a builder leaves it; returns its id and the environment's."""
    environment = Environments(store, team).find_or_create("shop", None)
    identifier, now = new_id(), datetime.now(UTC)
    row = {"id": identifier, "team_id": team, "environment_id": environment, "status": status}
    done = {"manifest": MANIFEST, "folder": "/gone"} if status == "SUCCEEDED" else {}
    with store.begin() as connection:
        connection.execute(
            sa.insert(tables.builds).values(
                **{**row, **done, **more}, version=version, options={"name": "shop"}, created_at=now
            )
        )
    say(store, identifier, *lines)
    return identifier, dashed(environment)


def say(store, build_id, *lines, first=1):
    rows = [
        {"build_id": build_id, "number": n, "text": line, "created_at": datetime.now(UTC)}
        for n, line in enumerate(lines, first)
    ]
    if rows:
        with store.begin() as connection:
            connection.execute(sa.insert(tables.build_lines), rows)


def end(store, build_id, **values):
    builds = tables.builds
    with store.begin() as connection:
        connection.execute(sa.update(builds).where(builds.c.id == build_id).values(**values))


async def test_an_empty_platform_says_how_an_environment_comes_there(web):
    assert "hud deploy FOLDER" in (await web.get("/environments")).text


async def test_environments_are_listed_with_what_they_offer_and_how_their_newest_build_is(
    web, platform
):
    build(platform.store, version=1)
    item = (await web.get("/environments.json")).json()["items"][0]
    assert (item["name"], item["state"], item["latest_build"]["version"]) == ("shop", "ready", "1")
    build(platform.store, "IN_PROGRESS")
    item = (await web.get("/environments.json")).json()["items"][0]
    assert (item["state"], item["latest_build"]["version"]) == ("building", "1")
    assert "No environment has this name" in (await web.get("/environments?search=zoo")).text


async def test_templates_and_tools_are_shown_with_their_schemas(web, platform):
    _, environment = build(platform.store, version=1)
    page = (await web.get(f"/environments/{environment}")).text
    assert "Buy &lt;b&gt;fruit&lt;/b&gt;." in page
    assert "one of &#34;pear&#34;, &#34;fig&#34;" in page
    assert "string or null, optional" in page
    data = (await web.get(f"/environments/{environment}.json")).json()
    assert [tool["name"] for tool in data["tools"]] == ["price"]
    assert data["capabilities"] == ["shell"]


async def test_an_environment_without_a_build_that_succeeded_says_so(web, platform):
    _, environment = build(platform.store, "FAILED", error="It broke.")
    assert "No build has succeeded yet" in (await web.get(f"/environments/{environment}")).text
    page = (await web.get(f"/environments/{environment}/builds")).text
    assert "It broke." in page


async def test_a_build_shows_its_log_the_last_lines_first_and_all_on_demand(web, platform):
    lines = [f"line {number}." for number in range(1, 1201)]
    identifier, _ = build(platform.store, version=1, lines=lines)
    page = (await web.get(f"/environments/builds/{identifier}")).text
    assert "line 1200." in page
    assert "line 700." not in page
    assert "The last 500 of 1,200 lines" in page
    whole = (await web.get(f"/environments/builds/{identifier}?lines=all")).text
    assert "line 1." in whole
    assert "data-live" not in whole


async def test_what_a_build_says_is_shown_as_text(web, platform):
    lines = ["<script>alert(1)</script>", "\x1b[31mred\u202e"]
    identifier, _ = build(platform.store, version=1, lines=lines)
    page = (await web.get(f"/environments/builds/{identifier}")).text
    assert "<script>alert" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page


async def test_the_log_of_a_build_that_goes_on_is_live_until_it_is_over(platform, web):
    identifier, _ = build(platform.store, "IN_PROGRESS", lines=["one"])
    page = (await web.get(f"/environments/builds/{identifier}")).text
    assert f"/events/builds/{identifier}" in page
    from hud_platform.environments import reports

    shown = (await web.get(f"/environments/builds/{identifier}.json")).json()
    assert (shown["revision"], shown["lines"]) == ("building-1", ["one"])

    async def listen():
        told = await web.get(f"/events/builds/{identifier}?seen=building-1")
        return told.text

    listening = asyncio.create_task(listen())
    say(platform.store, identifier, "two", first=2)
    end(platform.store, identifier, status="FAILED", error="No.")
    async with asyncio.timeout(20):
        told = await listening
    assert "event: changed\ndata: failed-2" in told
    assert told.rstrip().endswith("event: over\ndata: failed-2")
    assert reports.find_build(platform.store, LOCAL_TEAM, identifier)["status"] == "failed"


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
async def test_processes_of_an_environment_are_shown_with_their_memory(web, platform, tmp_path):
    _, environment = build(platform.store, version=1, folder=str(tmp_path))
    script = tmp_path / "source" / "env.py"
    script.parent.mkdir()
    script.write_text("import sys; print('up', flush=True); sys.stdin.read()")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = await asyncio.create_subprocess_exec(sys.executable, str(script), **pipes)
    try:
        await process.stdout.readline()
        data = (await web.get(f"/environments/{environment}/running.json")).json()
        assert [one["pid"] for one in data["processes"]] == [process.pid]
        assert data["processes"][0]["memory_bytes"] > 1 << 20
        assert "MiB" in (await web.get(f"/environments/{environment}/running")).text
    finally:
        await process.communicate(b"")
    data = (await web.get(f"/environments/{environment}/running.json")).json()
    assert data["processes"] == []
    page = (await web.get(f"/environments/{environment}/running")).text
    assert "This environment has no process" in page


async def test_rollouts_of_an_environment_are_counted(web, platform):
    _, environment = build(platform.store, version=1)
    row = {"team_id": LOCAL_TEAM, "status": "queued", "created_at": datetime.now(UTC)}
    specs = [{"env": "shop"}, {"env": "shop"}, {"env": "zoo"}]
    with platform.store.begin() as connection:
        rows = [{**row, "trace_id": new_id(), "spec": spec} for spec in specs]
        connection.execute(sa.insert(tables.rollouts), rows)
    data = (await web.get(f"/environments/{environment}/running.json")).json()
    assert data["rollouts"] == {"queued": 2}


async def test_other_teams_find_nothing(keyed):
    identifier, environment = build(keyed.store, version=1, lines=["one"])
    team = Teams(keyed.store).find_or_create("theirs").id
    async with sign_in(keyed, "read", team) as client:
        assert (await client.get("/environments.json")).json()["items"] == []
        for path in (
            f"/environments/{environment}",
            f"/environments/{environment}.json",
            f"/environments/{environment}/builds",
            f"/environments/{environment}/running",
            f"/environments/builds/{identifier}",
            f"/events/builds/{identifier}",
            f"/events/environments/{environment}",
            "/environments/none",
            "/environments/builds/none",
        ):
            assert (await client.get(path)).status_code == 404, path
    async with sign_in(keyed, "read") as client:
        assert (await client.get(f"/environments/{environment}")).status_code == 200
