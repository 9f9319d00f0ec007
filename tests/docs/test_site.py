"""The documentation's site: complete, current, built strictly into the wheel, and served by `hud up` from there."""

import html.parser
import importlib
import json
import re
import subprocess
import sys
import zipfile

import httpx
import pytest
from hatchling.builders.wheel import WheelBuilder
from tests.dashboard.conftest import chromium as chromium
from tests.docs.blocks import ROOT
from tests.fleet.live_server import LiveServer

from hud_dashboard.documentation import read_pages
from hud_dashboard.documentation.site import site_files
from hud_platform.access.response_headers import POLICY

pytestmark = pytest.mark.timeout(600)
REFERENCE = ROOT / "docs" / "reference"
FIRST_HITS = {
    "advantages": "training",
    "group": "training",
    "promotion": "promotion",
    "resume": "evaluation",
    "secrets": "secrets",
    "SFT": "supervised",
}
"""Words, and the page that the site's search shows first for them."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder of a wheel's content, as `pip install` lays it out."""
    folder = tmp_path_factory.mktemp("wheel")
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


@pytest.fixture(scope="module")
def server(installed, tmp_path_factory):
    """A real `hud up` of the installed wheel."""
    made = LiveServer(tmp_path_factory.mktemp("docs") / "home", "--workers", "0")
    made.variables["PYTHONPATH"] = str(installed)
    made.start()
    yield made
    assert made.stop() == 0


def evaluated(module, expression):
    """Return an expression's value in a generator of pages.

    In a process of its own: click keeps a command's options as its first caller saw them.
    """
    done = subprocess.run(
        [sys.executable, "-c", f"import {module}, json; print(json.dumps({expression}))"],
        cwd=ROOT / "scripts" / "site",
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.slow
def test_the_page_of_the_loop_is_that_of_its_files():
    page, stages = evaluated("loop", "[loop.page(), loop.STAGES]")
    assert (ROOT / "docs" / "loop.md").read_text() == page, "python scripts/site/loop.py"
    files = [name for _, _, names in stages for name in names]
    assert len(files) == len(set(files))


@pytest.mark.slow
def test_the_pages_of_commands_are_those_of_the_commands():
    docs = ROOT / "docs"
    written = {
        path.relative_to(docs).as_posix(): path.read_text()
        for path in (docs / "commands.md", *(docs / "commands").glob("*.md"))
    }
    assert evaluated("commands", "commands.pages()") == written, (
        "The pages of commands are not current: make docs"
    )


def test_the_reference_has_every_public_name_once():
    text = "".join(page.read_text() for page in REFERENCE.glob("*.md"))
    listed = re.findall(r"^::: (\S+)$", text, re.MULTILINE)
    assert len(listed) == len(set(listed))
    objects = {
        id(getattr(importlib.import_module(path.rpartition(".")[0]), path.rpartition(".")[2]))
        for path in listed
    }
    rooms = ["hud", *(f"hud.{page.stem}" for page in REFERENCE.glob("*.md") if page.stem != "hud")]
    for room in map(importlib.import_module, rooms):
        missing = [name for name in room.__all__ if id(getattr(room, name)) not in objects]
        assert not missing, (room.__name__, missing)


@pytest.mark.parametrize("page", sorted(REFERENCE.glob("*.md")), ids=lambda page: page.stem)
def test_each_name_of_the_reference_has_an_example(page):
    """Blocks of these pages run in `test_documentation.py`."""
    _, *entries = re.split(r"^::: ", page.read_text(), flags=re.MULTILINE)
    assert [entry.split()[0] for entry in entries if "```python" not in entry] == []


@pytest.mark.slow
def test_the_wheel_holds_every_page(installed):
    pages = read_pages(installed / "hud_dashboard")
    here = read_pages()
    assert {name: page.text for name, page in pages.items()} == {
        name: page.text for name, page in here.items()
    }
    built = {
        path.parent.relative_to(installed / "hud_dashboard" / "docs_site").as_posix()
        for path in (installed / "hud_dashboard" / "docs_site").rglob("index.html")
    }
    assert {"." if name == "index" else name for name in here if name != "readme"} <= built


class Links(html.parser.HTMLParser):
    """Addresses that a page loads, and what it holds that the policy blocks."""

    def __init__(self):
        super().__init__()
        self.loaded, self.blocked = [], []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag in ("script", "img", "iframe") or (
            tag == "link" and given.get("rel") != "canonical"
        ):
            self.loaded.append(given.get("src") or given.get("href") or "")
        if tag == "style" or "style" in given or any(name.startswith("on") for name in given):
            self.blocked.append((tag, attrs))
        if tag == "script" and "src" not in given and given.get("type") != "application/json":
            self.blocked.append((tag, attrs))


@pytest.mark.slow
def test_no_page_loads_from_elsewhere_or_holds_what_the_policy_blocks(installed):
    seen = 0
    for path in (installed / "hud_dashboard" / "docs_site").rglob("*.html"):
        page = Links()
        page.feed(path.read_text(encoding="utf-8"))
        assert page.blocked == [], path
        assert [url for url in page.loaded if re.match(r"(\w+:)?//", url)] == [], path
        seen += 1
    assert seen > 50


@pytest.mark.slow
def test_a_server_shows_the_site_without_a_key(server):
    with httpx.Client(base_url=server.url) as api:
        assert api.get("/docs").headers["location"] == "/docs/"
        front = api.get("/docs/")
        assert (front.status_code, front.headers["content-security-policy"]) == (200, POLICY)
        assert api.get("/docs/training").headers["location"] == "/docs/training/"
        page = api.get("/docs/training/")
        assert "Groups and advantages" in page.text
        again = api.get("/docs/training/", headers={"if-none-match": page.headers["etag"]})
        assert again.status_code == 304
        assert "hud models promote" in api.get("/docs/commands/models/").text
        assert "TrainingClient" in api.get("/docs/reference/hud/").text
        for missing in ("nothing", "%2e%2e/settings.py", "assets/%00"):
            answer = api.get(f"/docs/{missing}")
            assert answer.status_code == 404, missing


def test_a_checkout_without_a_site_says_how_to_build_it(tmp_path):
    package = tmp_path / "packages" / "openhud" / "hud"
    package.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text("")
    assert site_files(package) is None
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text("<h1>Here</h1>")
    assert site_files(package) is not None


@pytest.mark.slow
def test_a_browser_shows_and_searches_it_without_a_complaint(server, chromium):
    from playwright.sync_api import expect

    context = chromium.new_context(base_url=server.url)
    page = context.new_page()
    page.set_default_timeout(60_000)
    wrong, elsewhere = [], []
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "request",
        lambda asked: (
            elsewhere.append(asked.url)
            if not asked.url.startswith((server.url, "data:", "blob:"))
            else None
        ),
    )
    for path in ("/docs", "/docs/training/", "/docs/reference/hud/", "/docs/commands/"):
        assert page.goto(path).ok
        assert page.locator("article h1").is_visible()
    for words, best in FIRST_HITS.items():
        page.goto("/docs/")
        # What is typed before the index is loaded finds nothing.
        ready = page.locator(".md-search-result__meta", has_text="Type to start searching")
        ready.wait_for(state="attached")
        page.get_by_role("textbox", name="Search").press_sequentially(words)
        result = page.locator(".md-search-result__link").first
        expect(result).to_have_attribute("href", re.compile(f"/docs/{best}/"), timeout=60_000)
    result.click()
    page.wait_for_url(f"**/docs/{best}/**")
    context.close()
    assert (wrong, elsewhere) == ([], [])
