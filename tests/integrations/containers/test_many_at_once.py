"""Sixty-four workspaces at once, each with a tool of one second: none is lost, and none is left behind."""

import asyncio
import subprocess

import psutil
import pytest
from tests.container_engines import imported_image, require_engine
from tests.integrations.containers.image_layouts import (
    PROGRAMS,
    SMALL,
    member,
    needs_bubblewrap,
    programs,
    workspace,
    write_layout,
)

from hud_integrations.containers import engine_image, image

MANY = 64
MEMBERS = [*PROGRAMS, "/bin/sleep"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(params=["unpacked", "container"])
def box(request, tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    if request.param == "unpacked":
        return image(write_layout(tmp_path / "box", [programs(MEMBERS)]))
    require_engine()
    return engine_image(imported_image("hud-tests/many:1", [*programs(MEMBERS), member("etc")]))


def left_behind():
    """Return the descendants of this process, and the containers of workspaces on this machine."""
    listed = subprocess.run(["podman", "ps", "--all", "--format", "{{.Names}}"], capture_output=True, text=True)  # fmt: skip
    processes = {process.pid for process in psutil.Process().children(recursive=True)}
    return {*processes, *(name for name in listed.stdout.split() if name.startswith("hud-"))}


async def tool(box):
    async with workspace(box, limits=SMALL, spares=0) as (_, client):
        return (await client.run("sleep 1; echo done", timeout=600)).stdout


@needs_bubblewrap
async def test_none_is_lost_and_none_is_left_behind(box):
    before = left_behind()
    ended = await asyncio.gather(*(tool(box) for _ in range(MANY)), return_exceptions=True)
    assert ended == ["done\n"] * MANY
    assert left_behind() <= before
