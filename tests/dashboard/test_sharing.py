"""Read-only links to a job, its pages in a folder, saved views, and lists as CSV."""

import csv
import io
import re

import pytest
from tests.dashboard.conftest import browse, sign_in
from tests.dashboard.recorded import record

from hud.environment.templates.task import default_slug
from hud.errors import UsageError
from hud_dashboard.bundle.folder import export_job
from hud_dashboard.queries import saved_views
from hud_platform.access.teams import Teams


def traces_of(platform, job):
    from hud_platform.store import records

    runs, _ = records.runs_page(platform.store, {"id": job, "team_id": team_of(platform), "status": "completed"}, None, 0)  # fmt: skip
    return [run["trace_id"] for run in runs]


def team_of(platform):
    return Teams(platform.store).default().id


async def shared_link(client, job):
    made = await client.post(f"/jobs/{job}/share", data={"days": "7"})
    assert made.status_code == 303, made.text
    (link, *_) = (await client.get(f"/jobs/{job}.json")).json()["links"]
    return link


async def test_a_link_shows_one_job_without_a_key_until_it_is_revoked(keyed):
    team = team_of(keyed)
    power = {"env": "arithmetic", "id": "power", "args": {"base": 2}}
    slug = default_slug("power", power["args"])
    job = record(keyed, "Evening", {slug: [1.0, 0.0]}, team=team, task=power)
    other = record(keyed, "Secret", {"b": [1.0]}, team=team)
    (trace, _), (foreign,) = traces_of(keyed, job), traces_of(keyed, other)
    async with sign_in(keyed, "run") as member, browse(keyed.app) as stranger:
        link = await shared_link(member, job)
        address = f"/shared/{link['token']}"
        page = await stranger.get(address)
        assert page.status_code == 200
        assert "Evening" in page.text
        assert "Secret" not in page.text
        assert f"{address}/runs/{trace}" in page.text
        assert "<form" not in page.text
        run = await stranger.get(f"{address}/runs/{trace}")
        assert run.status_code == 200
        assert "<title>power(base=2) · " in run.text
        assert (await stranger.get(f"{address}/runs/{foreign}")).status_code == 404
        assert (await stranger.get(f"/jobs/{job}")).status_code != 200
        assert (await stranger.get(f"{address}x")).status_code == 404
        revoked = await member.post(f"/jobs/{job}/links/{link['id']}/revoke")
        assert revoked.status_code == 303
        ended = await stranger.get(address)
        assert ended.status_code == 403
        assert "This link was revoked" in ended.text


async def test_only_who_may_run_makes_links_and_only_of_the_own_team(keyed):
    job = record(keyed, "Evening", {"a": [1.0]}, team=team_of(keyed))
    other = Teams(keyed.store).find_or_create("other").id
    async with sign_in(keyed, "run") as member:
        link = await shared_link(member, job)
    async with sign_in(keyed, "read") as reader:
        assert (await reader.post(f"/jobs/{job}/share", data={"days": "7"})).status_code == 403
        assert (await reader.get(f"/jobs/{job}.json")).json()["links"] == []
    async with sign_in(keyed, "admin", team=other) as foreign:
        assert (await foreign.post(f"/jobs/{job}/share", data={"days": "7"})).status_code == 404
        address = f"/jobs/{job}/links/{link['id']}/revoke"
        assert (await foreign.post(address)).status_code == 404


@pytest.mark.parametrize("days", ["0", "366", "", "x", "-1"])
async def test_a_link_is_valid_for_a_year_at_most(web, platform, days):
    job = record(platform, "Evening", {"a": [1.0]})
    refused = await web.post(f"/jobs/{job}/share", data={"days": days})
    assert refused.status_code == 400
    assert "valid for 1 to 365 days" in refused.text


async def test_a_job_is_written_into_a_folder_that_opens_from_the_disk(platform, tmp_path):
    job = record(platform, "<b>Evening</b>", {"a": [1.0, {"reward": None, "failure_kind": "grader", "error": "x"}]})  # fmt: skip
    folder = tmp_path / "pages"
    assert export_job(platform.store, "0" * 32, job[:8], folder) == 2
    page = (folder / "index.html").read_text()
    assert "<b>Evening" not in page
    addresses = re.findall(r'(?:href|src)="([^"]+)"', page)
    assert len([address for address in addresses if address.startswith("runs/")]) == 2
    assert [address for address in addresses if not (folder / address).is_file()] == []
    run = next((folder / "runs").iterdir()).read_text()
    for address in re.findall(r'(?:href|src)="([^"]+)"', run):
        assert (folder / "runs" / address).resolve().is_file()
    with pytest.raises(UsageError, match="is not empty"):
        export_job(platform.store, "0" * 32, job, folder)


async def test_a_list_with_its_filters_is_saved_under_a_name(keyed):
    other = Teams(keyed.store).find_or_create("other").id
    address = "/jobs?status=failed&sort=-reward"
    record(keyed, "Evening", {"a": [1.0]}, team=team_of(keyed))
    async with sign_in(keyed, "run") as member:
        saved = await member.post("/views", data={"name": "Failures", "address": address})
        assert saved.headers["location"] == address
        (view,) = (await member.get("/jobs.json")).json()["views"]
        assert (view["name"], view["address"]) == ("Failures", address)
        taken = await member.post("/views", data={"name": "Failures", "address": address})
        assert taken.status_code == 409
        for wrong in ("https://example.com/jobs?a=1", "//example.com/jobs?a=1", "/people?a=1", "/jobs"):  # fmt: skip
            answer = await member.post("/views", data={"name": "x", "address": wrong})
            assert answer.status_code == 400, wrong
        assert "Failures" in (await member.get("/jobs")).text
        async with sign_in(keyed, "run", team=other) as foreign:
            assert (await foreign.get("/jobs.json")).json()["views"] == []
            assert (await foreign.post(f"/views/{view['id']}/remove")).status_code == 404
        assert (await member.post(f"/views/{view['id']}/remove")).headers["location"] == "/jobs"
        assert (await member.get("/jobs.json")).json()["views"] == []


async def test_a_team_has_so_many_views_and_no_more(keyed, monkeypatch):
    monkeypatch.setattr(saved_views, "MOST_VIEWS", 2)
    other = Teams(keyed.store).find_or_create("other").id

    async def save(person, name):
        form = {"name": name, "address": "/jobs?status=failed"}
        return (await person.post("/views", data=form)).status_code

    async with (
        sign_in(keyed, "run") as member,
        sign_in(keyed, "run", team=other) as foreign,
    ):
        assert [await save(member, name) for name in "abc"] == [303, 303, 400]
        assert await save(foreign, "c") == 303
        (view, _) = (await member.get("/jobs.json")).json()["views"]
        await member.post(f"/views/{view['id']}/remove")
        assert await save(member, "c") == 303


async def test_a_list_is_a_csv_file_of_all_its_pages(web, platform):
    for number in range(30):
        record(platform, f"=cmd{number}", {"a": [number / 30]}, age=number)
    answer = await web.get("/jobs.csv", params={"sort": "-reward"})
    assert answer.headers["content-type"].startswith("text/csv")
    assert 'filename="jobs.csv"' in answer.headers["content-disposition"]
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [row["name"] for row in rows] == [f"'=cmd{number}" for number in range(29, -1, -1)]
    assert float(rows[0]["reward"]) == pytest.approx(29 / 30)
    assert rows[0]["models"] == "tiny"
    filtered = await web.get("/jobs.csv", params={"text": "cmd7"})
    assert len(list(csv.DictReader(io.StringIO(filtered.text)))) == 1
    for address in ("/search.csv?text=a", "/train.csv", "/tasksets.csv", "/environments.csv"):
        assert (await web.get(address)).status_code == 200, address
