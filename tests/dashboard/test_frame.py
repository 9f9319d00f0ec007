"""What holds for every page: safe headers, who comes in, where requests may come from, errors, and static files."""

import asyncio
import gzip
import hashlib
import re
import threading
import time

import pytest
from tests.dashboard.conftest import browse, sign_in
from tests.dashboard.recorded import record

from hud_dashboard import application
from hud_dashboard.local.door import LocalDoor
from hud_dashboard.page_paths import PATHS
from hud_dashboard.static_files import FOLDER
from hud_dashboard.value_formats import visible
from hud_platform.access.response_headers import POLICY


def test_the_pages_of_two_platforms_have_the_same_routes(platform, keyed):
    first, second = (application.create_pages(parts).routes for parts in (platform, keyed))
    assert len(first) > 40  # 0.1 s of each first request, if they were built anew.
    assert all(one is other for one, other in zip(first, second, strict=True))


async def test_the_first_page_is_that_of_the_jobs(web):
    answer = await web.get("/")
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs")
    assert "No job is recorded yet." in (await web.get("/jobs")).text


async def test_the_first_page_blocks_no_other_request_while_pages_load(web, monkeypatch):
    real, loads, begun = application.create_pages, [], threading.Event()

    def slow(parts):
        loads.append(parts)
        begun.set()
        time.sleep(0.5)
        return real(parts)

    monkeypatch.setattr(application, "create_pages", slow)
    first = [asyncio.create_task(web.get("/jobs")) for _ in range(2)]
    await asyncio.to_thread(begun.wait, 10)
    assert (await web.get("/v2/jobs", headers={"accept": "application/json"})).status_code == 200
    assert not any(page.done() for page in first)
    assert [(await page).status_code for page in first] == [200, 200]
    assert len(loads) == 1


async def test_every_page_has_a_twin_in_json(web):
    assert (await web.get("/jobs.json")).json()["items"] == []


@pytest.mark.parametrize("path", ["/jobs", "/jobs.json", "/jobs/nothing", "/static/x/app.js"])
async def test_every_answer_has_the_strict_policy(web, path):
    headers = (await web.get(path)).headers
    assert headers["content-security-policy"] == POLICY
    assert "unsafe" not in POLICY
    assert headers["x-content-type-options"] == "nosniff"


async def test_no_page_holds_a_script_or_a_style_of_its_own(web):
    page = (await web.get("/jobs")).text
    assert re.findall(r"<script(?![^>]*\bsrc=)", page) == []
    assert re.findall(r"<style|\sstyle=|\son[a-z]+=", page) == []


async def test_static_files_are_kept_for_good_under_an_address_that_changes_with_them(web):
    page = (await web.get("/jobs")).text
    places = re.findall(r'(?:src|href)="(/static/[^"]+)"', page)
    assert len(places) >= 6
    for place in places:
        answer = await web.get(place)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
    old = await web.get("/static/000000000000/app.js")
    assert old.headers["cache-control"] == "no-cache"
    assert (await web.get("/static/000000000000/%2e%2e/rendering.py")).status_code == 404


async def test_what_is_wrong_is_a_page_for_people_and_json_for_programs(web):
    page = await web.get("/jobs/0123456789abcdef0123456789abcdef")
    assert (page.status_code, "Not found" in page.text) == (404, True)
    told = await web.get("/jobs/0123456789abcdef0123456789abcdef", headers={"accept": "*/*"})
    assert told.status_code == 404
    assert "There is no job" in told.json()["detail"]
    assert (await web.get("/jobs?offset=x")).status_code == 422


@pytest.mark.slow
async def test_a_browser_at_an_unknown_address_gets_a_page(web, keyed):
    for path in ("/job", "/login", "/nothing/here"):
        answer = await web.get(path)
        assert (answer.status_code, answer.headers["content-type"][:9]) == (404, "text/html"), path
        assert f"There is no page {path}." in answer.text
    async with browse(keyed.app) as client:
        answer = await client.get("/job")
        assert (answer.status_code, answer.headers["location"]) == (303, "/signin?next=/job")
        assert (await client.get("/job", headers={"accept": "*/*"})).status_code == 401


def test_each_path_belongs_to_the_pages_or_to_the_api(keyed):
    first = {route.path[1:].partition("/")[0] for route in keyed.app.routes}
    assert first - PATHS.families == PATHS.api_families()


async def test_another_site_gets_a_page_that_says_so(web):
    form = {"data": {"name": "x"}, "headers": {"sec-fetch-site": "cross-site"}}
    answer = await web.post("/tasksets", **form)
    assert (answer.status_code, answer.headers["content-type"][:9]) == (403, "text/html")
    assert "This request comes from another site." in answer.text
    assert "hud view" not in answer.text


@pytest.mark.slow
async def test_the_paths_of_the_api_stay_its_own(web):
    assert (await web.get("/v2/jobs")).json()["items"] == []
    models = await web.get("/models", headers={"accept": "application/json"})
    assert models.json()["object"] == "list"
    assert "/v2/jobs" in (await web.get("/docs/routes")).text
    assert (await web.delete("/v2/jobs")).status_code == 405


async def test_a_checkout_without_built_documentation_says_how_to_build_it(web, monkeypatch):
    monkeypatch.setattr("hud_dashboard.documentation.routes._site", lambda: None)
    for path, status in (("/docs/", 200), ("/docs/training/", 404)):
        page = await web.get(path)
        assert (page.status_code, "make docs" in page.text) == (status, True)


# -- keys ------------------------------------------------------------------------------------------------


async def test_without_a_session_a_browser_is_sent_to_sign_in(keyed):
    async with browse(keyed.app) as client:
        answer = await client.get("/jobs?offset=50")
        assert answer.status_code == 303
        assert answer.headers["location"] == "/signin?next=/jobs%3Foffset%3D50"
        within = await client.get("/jobs", headers={"hx-request": "true"})
        assert (within.status_code, within.headers["hx-redirect"]) == (401, "/signin")
        program = await client.get("/jobs.json", headers={"accept": "*/*"})
        assert program.status_code == 401
        assert (await client.get("/signin")).status_code == 200


async def test_a_wrong_key_opens_nothing(keyed):
    async with browse(keyed.app) as client:
        answer = await client.post("/signin", data={"key": "hud_wrong"})
        assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)
        assert "unknown, expired or revoked" in answer.text


async def test_a_key_becomes_a_session_that_opens_pages_only(keyed):
    async with sign_in(keyed) as client:
        assert (await client.get("/jobs")).status_code == 200
        assert "Sign out" in (await client.get("/jobs")).text
        assert (await client.get("/v2/jobs")).status_code == 401


async def test_a_session_is_over_when_its_key_is_or_when_it_is_signed_out(keyed):
    async with sign_in(keyed) as client:
        kept = client.cookies["hud_session"]
        await client.post("/signout")
        client.cookies.set("hud_session", kept, domain="dashboard")
        assert (await client.get("/jobs")).status_code == 303
    async with sign_in(keyed) as client:
        team = keyed.web_sessions.find(client.cookies["hud_session"]).team_id
        (key, *_), _ = keyed.keys.page(team, 1, 0)
        keyed.keys.revoke(key.team_id, key.id)
        assert (await client.get("/jobs")).status_code == 303


async def test_the_cookie_is_kept_from_scripts_and_from_other_sites(keyed):
    _, secret = keyed.keys.mint("browser", "0" * 32, scopes=("read",))
    async with browse(keyed.app) as client:
        answer = await client.post("/signin", data={"key": secret, "next": "/jobs?status=failed"})
        assert answer.headers["location"] == "/jobs?status=failed"
        kept = answer.headers["set-cookie"].lower()
        assert "httponly" in kept
        assert "samesite=lax" in kept


@pytest.mark.parametrize(
    "place", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)"]
)
async def test_signing_in_leads_to_no_other_site(keyed, place):
    _, secret = keyed.keys.mint("browser", "0" * 32, scopes=("read",))
    async with browse(keyed.app) as client:
        answer = await client.post("/signin", data={"key": secret, "next": place})
        assert answer.headers["location"] == "/"


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site", "origin": "http://dashboard"},
        {"sec-fetch-site": "none"},
        {"sec-fetch-site": "", "origin": "http://evil.example"},
        {"sec-fetch-site": "", "origin": "null"},
        {"sec-fetch-site": "", "origin": ""},
    ],
)
async def test_what_another_site_posts_is_refused(keyed, headers):
    async with sign_in(keyed) as client:
        answer = await client.post("/signout", headers=headers)
        assert answer.status_code == 403
        assert (await client.get("/jobs")).status_code == 200


# -- hud view --------------------------------------------------------------------------------------------


async def test_hud_view_lets_in_one_browser_by_its_token(platform):
    door = LocalDoor(platform.app, 4000)
    token = door.token
    async with browse(door) as client, browse(door) as other:
        client.base_url = other.base_url = "http://127.0.0.1:4000"
        assert (await client.get("/jobs")).status_code == 403
        assert (await client.get("/?token=wrong")).status_code == 403
        answer = await client.get(f"/?token={token}")
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        assert (await client.get("/jobs")).status_code == 200
        assert (await client.get(f"/jobs?token={token}")).headers["location"] == "/jobs"
        assert (await other.get(f"/?token={token}")).status_code == 403
        assert (await client.get("/v2/jobs")).status_code == 404


async def test_hud_view_answers_to_no_other_name(platform):
    door = LocalDoor(platform.app, 4000)
    async with browse(door) as client:
        client.base_url = "http://rebound.example:4000"
        assert (await client.get(f"/?token={door.token}")).status_code == 403
    assert door.token is not None


# -- text that nobody vouches for --------------------------------------------------------------------------


def test_text_is_escaped_and_what_hides_in_it_is_shown():
    assert visible("<b onclick=x>&amp;") == "&lt;b onclick=x&gt;&amp;amp;"
    shown = visible("safe\u202egnp.exe\x1b[2J\x00\u2066")
    assert "\u202e" not in shown
    assert "\x1b" not in shown
    assert "U+202E" in shown
    assert "␛" in shown
    assert "␀" in shown
    assert (
        visible("two\nlines\tof text, Ελλάδα, עברית, 👩‍🚀")
        == "two\nlines\tof text, Ελλάδα, עברית, 👩‍🚀"
    )


def test_huge_text_is_cut_and_says_so():
    shown = visible("x" * 10_000_000, 100)
    assert len(shown) < 300
    assert "9,999,900 more characters" in shown


# -- weight --------------------------------------------------------------------------------------------------


async def test_the_first_load_is_light(web):
    """All scripts and styles together, whatever page one opens: well under 300 kB."""
    page = await web.get("/jobs", headers={"accept-encoding": "gzip"})
    assert page.headers["content-encoding"] == "gzip"
    files = [path for path in FOLDER.rglob("*") if path.suffix in (".js", ".css", ".svg")]
    sent = sum(len(gzip.compress(path.read_bytes())) for path in files)
    assert sent + len(page.content) < 200_000


async def test_events_are_not_packed_which_would_hold_them_back(web, platform):
    job = record(platform, "over", {})
    answer = await web.get(f"/events/jobs/{job}", headers={"accept-encoding": "gzip"})
    assert "event: over" in answer.text
    assert "content-encoding" not in answer.headers


def test_every_vendored_file_is_the_one_that_its_table_names():
    table = (FOLDER / "vendor" / "VERSIONS.md").read_text()
    files = [path for path in (FOLDER / "vendor").iterdir() if path.suffix in (".js", ".css")]
    for path in files:
        assert f"`{hashlib.sha256(path.read_bytes()).hexdigest()}`" in table
    assert len(files) == table.count("\n| `")
