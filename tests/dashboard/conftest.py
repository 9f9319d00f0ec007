"""The dashboard for tests: in this process for what a page says, and as a real server for what a browser does."""

import os
import shutil
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx
import pytest
from tests.fleet.live_server import LiveServer

from hud_platform.access.teams import Teams
from hud_platform.application import create_app
from hud_platform.process.config import PlatformConfig

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
BROWSER_HEADERS = {
    "accept": "text/html,application/xhtml+xml,*/*;q=0.8",
    "origin": "http://dashboard",
    "sec-fetch-site": "same-origin",
}
"""What a browser sends from one of our own pages."""


def browse(app) -> httpx.AsyncClient:
    """Return a client that asks as a browser does; it follows no redirects."""
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app, raise_app_exceptions=False),
        base_url="http://dashboard",
        headers=BROWSER_HEADERS,
    )


@pytest.fixture
async def platform(tmp_path):
    """The embedded platform, whose store tests fill."""
    app = create_app(PlatformConfig(tmp_path / "home"))
    app.state.parts.app = app
    yield app.state.parts
    app.state.parts.close()


@pytest.fixture
async def web(platform):
    """A browser on the embedded platform: it may do everything."""
    async with browse(platform.app) as client:
        yield client


@pytest.fixture
async def keyed(tmp_path):
    """The platform of a server with keys. `keyed.app` is its application; `sign_in(keyed, scope)` a browser on it."""
    app = create_app(PlatformConfig(tmp_path / "keyed", keys=True))
    app.state.parts.app = app
    yield app.state.parts
    app.state.parts.close()


@asynccontextmanager
async def sign_in(platform, scope="admin", team=None):
    """A browser that signed in with a new key of a team."""
    team = team or Teams(platform.store).default().id
    _, secret = platform.keys.mint("browser", team, scopes=(scope,))
    async with browse(platform.app) as client:
        answer = await client.post("/signin", data={"key": secret})
        assert answer.status_code == 303, answer.text
        yield client


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A real `hud up`, for Playwright: `server.url`, `server.key` (an admin's), `server.client()` (the API)."""
    made = LiveServer(tmp_path_factory.mktemp("dashboard") / "home", "--workers", "0")
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def chromium():
    """A Chromium that Playwright drives. It needs Debian's package, which `scripts/setup-worlds` installs.

    Playwright runs an event loop of its own: a file that uses this has no `async` tests.
    """
    if not Path(CHROMIUM).exists():
        pytest.skip("Chromium is not installed: scripts/setup-worlds chromium")
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=20_000)
    with sync_playwright() as playwright:
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()


@contextmanager
def browser_tab(server, chromium):
    """A signed-in tab of a fresh browser profile; what its console says wrong fails the test."""
    context = chromium.new_context(base_url=server.url)
    page = context.new_page()
    page.set_default_timeout(20_000)
    wrong = []
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto("/signin")
    page.get_by_label("Key", exact=True).fill(server.key)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/jobs")
    yield page
    context.close()
    assert wrong == []


@pytest.fixture
def tab(server, chromium):
    """A signed-in tab; see `browser_tab`."""
    with browser_tab(server, chromium) as page:
        yield page
