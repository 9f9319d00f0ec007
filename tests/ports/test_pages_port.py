"""The port `PagesPlug`: pages that join the platform by an entry point."""

import httpx
import pytest

from hud.errors import UsageError
from hud_platform.access.web_sessions import COOKIE
from hud_platform.application import create_app
from hud_platform.plugs.page_plugs import page_plugs
from hud_platform.process.config import PlatformConfig
from hud_platform.store.tables import LOCAL_TEAM

CHESS = """
from typing import Annotated

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from hud_platform.process.background import Service
from hud_platform.dependencies import service_part
from hud_platform.access.page_paths import PagePaths
from hud_platform.plugs.page_plugs import PagesPlug


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
        if scope["type"] == "http" and scope["path"].startswith("/board"):
            shown = f"<p>working: {self.parts.service('chess').working}</p>"
            if scope["method"] == "POST":
                shown = f"<p>moved by {scope['state']['identity'].team_id}</p>"
            await HTMLResponse(shown)(scope, receive, send)
        else:
            await self.app(scope, receive, send)


router = APIRouter()


@router.get("/v2/chess/rules", response_class=HTMLResponse)
def rules(board: Annotated[Board, service_part("chess")]) -> str:
    return f"<p>rules: {board.working}</p>"


plug = PagesPlug(Pages, PagePaths(frozenset({"board"}), open=("/board/help",)), (router,), Board)
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


async def test_a_stranger_s_pages_take_a_post_of_a_browser_that_has_signed_in(stranger, tmp_path):
    stranger("hud.pages", "chess", CHESS)
    app = create_app(PlatformConfig(tmp_path / "home", keys=True))
    parts = app.state.parts
    key, _ = parts.keys.mint("browser", LOCAL_TEAM, scopes=("run",))
    transport = httpx.ASGITransport(app=app)
    html = {"accept": "text/html"}
    async with httpx.AsyncClient(transport=transport, base_url="http://hud", headers=html) as http:
        refused = await http.post("/board")
        assert (refused.status_code, refused.headers["location"]) == (303, "/signin")
        assert (await http.get("/board/help")).status_code == 200
        http.cookies.set(COOKIE, parts.web_sessions.begin(key))
        moved = await http.post("/board")
        assert (moved.status_code, moved.text) == (200, f"<p>moved by {LOCAL_TEAM}</p>")
        assert (await http.get("/board")).text == "<p>working: False</p>"
        assert (await http.post("/v2/jobs")).status_code == 401
    parts.close()


async def test_without_a_sign_in_page_a_browser_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr("hud_platform.application.page_plugs", dict)
    app = create_app(PlatformConfig(tmp_path / "home", keys=True))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://hud") as http:
        assert (await http.get("/jobs", headers={"accept": "text/html"})).status_code == 401
    app.state.parts.close()


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (CHESS.replace('{"board"}', '{"board", "v2"}'), r"/v2, which the platform has"),
        (
            CHESS.replace('{"board"}', '{"board", "jobs"}'),
            r"'(chess|dashboard)' has pages at /jobs",
        ),
        (CHESS.replace('"/board/help"', '"/v2/models"'), r"opens /v2/models, which is no path"),
    ],
)
def test_paths_of_pages_are_one_plug_s_alone(stranger, tmp_path, code, reason):
    stranger("hud.pages", "chess", code)
    with pytest.raises(UsageError, match=reason):
        create_app(PlatformConfig(tmp_path / "home"))


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
