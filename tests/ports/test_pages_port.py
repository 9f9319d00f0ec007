"""The port `PagesPlug`: pages that join the platform by an entry point."""

import httpx
import pytest

from hud.errors import UsageError
from hud_platform.application import PlatformConfig, create_app
from hud_platform.pages import page_plugs

CHESS = """
from typing import Annotated

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from hud_platform.process.background import Service
from hud_platform.dependencies import service_part
from hud_platform.pages import PagesPlug


class Board(Service):
    def __init__(self, parts):
        self.working, self._stopping = False, parts.stopping

    async def work(self):
        self.working = True
        await self._stopping.wait()


class Pages:
    def __init__(self, app, parts):
        self.app, self.parts = app, parts

    async def __call__(self, scope, receive, send):
        if scope["type"] == "http" and scope["path"] == "/board":
            shown = f"<p>working: {self.parts.service('chess').working}</p>"
            await HTMLResponse(shown)(scope, receive, send)
        else:
            await self.app(scope, receive, send)


router = APIRouter()


@router.get("/v2/chess/rules", response_class=HTMLResponse)
def rules(board: Annotated[Board, service_part("chess")]) -> str:
    return f"<p>rules: {board.working}</p>"


plug = PagesPlug(Pages, (router,), Board)
"""


async def test_a_stranger_s_pages_join_with_their_state_and_its_work(stranger, tmp_path):
    stranger("hud.pages", "chess", CHESS)
    app = create_app(PlatformConfig(tmp_path / "home"))
    transport = httpx.ASGITransport(app=app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://hud") as http,
    ):
        assert (await http.get("/v2/models")).status_code == 200
        assert (await http.get("/board")).text == "<p>working: True</p>"
        assert (await http.get("/v2/chess/rules")).text == "<p>rules: True</p>"


def test_what_is_no_pages_is_refused_with_its_distribution(stranger, tmp_path):
    stranger("hud.pages", "chess", "plug = 1")
    with pytest.raises(UsageError, match=r"hud\.pages 'chess'.*PagesPlug"):
        create_app(PlatformConfig(tmp_path / "home"))


async def test_the_platform_serves_its_api_without_pages(monkeypatch, tmp_path):
    monkeypatch.setattr("hud_platform.application.page_plugs", dict)
    transport = httpx.ASGITransport(app=create_app(PlatformConfig(tmp_path / "home")))
    async with httpx.AsyncClient(transport=transport, base_url="http://hud") as http:
        assert (await http.get("/v2/models")).status_code == 200
        assert (await http.get("/jobs", headers={"accept": "text/html"})).status_code == 404


def test_the_dashboard_follows_the_port():
    assert "dashboard" in page_plugs()
