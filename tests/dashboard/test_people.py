"""People: keys are made, shown once and revoked; teams and quotas; the audit log."""

import re
from datetime import UTC, datetime

import pytest
import sqlalchemy as sa
from tests.dashboard.conftest import browse, sign_in
from tests.dashboard.test_models import made, make_model

from hud.trace import new_id
from hud_platform.access.teams import Teams
from hud_platform.store import tables
from hud_platform.store.tables import LOCAL_TEAM

FORM = {"name": "laptop", "scope": "run", "lifetime": "30"}


def secret_in(page):
    return re.search(r'<code id="secret">(hud_[^<]+)</code>', page)[1]


async def actions(platform, team=LOCAL_TEAM):

    from hud_platform.access import audit_log

    items, _ = audit_log.page(platform.store, team, 100, 0)
    return [(item["action"], item["subject"]) for item in items]


async def test_settings_lead_to_the_keys(web):
    answer = await web.get("/settings")
    assert (answer.status_code, answer.headers["location"]) == (303, "/people")


async def test_a_key_is_made_shown_once_and_opens_what_its_scope_says(keyed):
    async with sign_in(keyed) as client:
        made = await client.post("/people/keys", data=FORM)
        secret = secret_in(made.text)
        assert made.headers["cache-control"] == "no-store"
        page = (await client.get("/people")).text
        assert "laptop" in page
        assert secret not in page
        assert secret not in (await client.get("/people.json")).text
    async with browse(keyed.app) as program:
        program.headers["authorization"] = f"Bearer {secret}"
        assert (await program.get("/v2/jobs")).status_code == 200
        assert (await program.get("/v2/keys")).status_code == 403


async def test_many_keys_and_passes_are_paged(web, platform):
    for number in range(60):
        scopes = ("fleet",) if number % 2 else ("read",)
        platform.keys.mint(f"key-{number}", LOCAL_TEAM, scopes=scopes)
    platform.keys.revoke(LOCAL_TEAM, "key-59")
    pages = [(await web.get(f"/people.json?offset={offset}")).json() for offset in (0, 50)]
    assert [(len(page["items"]), page["total"], page["hidden"]) for page in pages] == [
        (50, 59, 1),
        (9, 59, 1),
    ]
    assert "1–50 of 59" in (await web.get("/people")).text
    passes = (await web.get("/fleet/passes.json")).json()
    assert (passes["total"], {key["scopes"][0] for key in passes["items"]}) == (30, {"fleet"})
    listed = (await web.get("/v2/keys?limit=20&offset=50")).json()
    assert (len(listed["items"]), listed["total"]) == (10, 60)
    listed = (await web.get("/v2/fleet-passes?limit=20")).json()
    assert (len(listed["items"]), listed["total"]) == (20, 30)
    (team,) = (await web.get("/people/teams.json")).json()["items"]
    assert team["keys"] == 59


@pytest.mark.slow
async def test_a_revoked_key_is_refused_at_once_and_is_hidden(keyed):
    async with sign_in(keyed) as client:
        secret = secret_in((await client.post("/people/keys", data=FORM)).text)
        items = (await client.get("/people.json")).json()["items"]
        key = next(item for item in items if item["name"] == "laptop")
        answer = await client.post(f"/people/keys/{key['id']}/revoke")
        assert (answer.status_code, answer.headers["location"]) == (303, "/people")
        assert "laptop" not in [
            i["name"] for i in (await client.get("/people.json")).json()["items"]
        ]
        every = (await client.get("/people.json?state=all")).json()["items"]
        assert next(i for i in every if i["name"] == "laptop")["state"] == "revoked"
    async with browse(keyed.app) as program:
        program.headers["authorization"] = f"Bearer {secret}"
        assert (await program.get("/v2/jobs")).status_code == 401


async def test_limits_and_lifetime_of_a_key_are_what_the_form_said(keyed):
    async with sign_in(keyed) as client:
        more = {"requests_per_minute": "1,200", "tokens_per_minute": "50000", "lifetime": "7"}
        await client.post("/people/keys", data={**FORM, **more})
        items = (await client.get("/people.json")).json()["items"]
        key = next(item for item in items if item["name"] == "laptop")
    assert (key["requests_per_minute"], key["tokens_per_minute"]) == (1200, 50_000)
    left = datetime.fromisoformat(key["expires_at"]) - datetime.now(UTC)
    assert 6 <= left.days <= 7


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"name": " "}, "A key needs a name"),
        ({"scope": "root"}, "There is no scope"),
        ({"lifetime": "-1"}, "Choose one of the lifetimes"),
        ({"requests_per_minute": "many"}, "Requests a minute must be a whole number"),
        ({"tokens_per_minute": "0"}, "Tokens a minute must be a whole number"),
        ({"tokens_per_minute": "9" * 5000}, "Tokens a minute must be a whole number"),
    ],
)
async def test_what_is_wrong_with_a_new_key_is_one_sentence_and_the_form_stays(
    web, wrong, sentence
):
    answer = await web.post("/people/keys", data={**FORM, **wrong})
    assert answer.status_code == 422
    assert sentence in answer.text.replace("&#39;", "'")
    assert "Create the key" in answer.text
    assert (await web.get("/people.json?state=all")).json()["items"] == []


@pytest.mark.slow
@pytest.mark.parametrize("scope", ["read", "run", "train"])
async def test_who_is_no_admin_sees_his_own_key_and_changes_nothing(keyed, scope):
    other, _ = keyed.keys.mint("somebody", LOCAL_TEAM)
    async with sign_in(keyed, scope) as client:
        items = (await client.get("/people.json")).json()["items"]
        assert [item["name"] for item in items] == ["browser"]
        assert (await client.get("/people")).text.count("/revoke") == 0
        for path in ("/people/new", "/people/audit", "/people/audit.json"):
            assert (await client.get(path)).status_code == 403
        assert (await client.post("/people/keys", data=FORM)).status_code == 403
        assert (await client.post(f"/people/keys/{other.id}/revoke")).status_code == 403
    assert keyed.keys.by_id(other.id).valid


@pytest.mark.slow
async def test_other_teams_see_nothing_of_each_other(keyed):
    theirs = Teams(keyed.store).find_or_create("theirs").id
    foreign, _ = keyed.keys.mint("foreign", theirs)
    async with sign_in(keyed) as ours, sign_in(keyed, team=theirs) as them:
        names = [
            item["name"] for item in (await ours.get("/people.json?state=all")).json()["items"]
        ]
        assert names == ["browser"]
        assert (await ours.post(f"/people/keys/{foreign.id}/revoke")).status_code == 404
        # The first team's admins make teams, and so know their names; others know their own.
        teams = (await them.get("/people/teams.json")).json()["items"]
        assert [team["name"] for team in teams] == ["theirs"]
        known = (await ours.get("/people/teams.json")).json()["items"]
        assert [team["name"] for team in known] == ["default", "theirs"]
        refused = await them.post("/people/keys", data={**FORM, "team": "default"})
        assert "Only an admin of the first team" in refused.text
        log = (await them.get("/people/audit.json")).json()["items"]
        assert [entry["action"] for entry in log] == ["signed in"]


async def test_a_key_for_a_new_team_makes_the_team(keyed):
    async with sign_in(keyed) as client:
        secret = secret_in((await client.post("/people/keys", data={**FORM, "team": "new"})).text)
        teams = (await client.get("/people/teams.json")).json()["items"]
    assert [team["name"] for team in teams] == ["default", "new"]
    assert keyed.keys.find(secret).team_id == teams[1]["id"]


@pytest.mark.slow
async def test_what_keys_used_is_shown_beside_what_they_may(keyed):
    key, _ = keyed.keys.mint("worker", LOCAL_TEAM, tokens_per_minute=1000)
    row = {
        "team_id": LOCAL_TEAM,
        "key_id": key.id,
        "route": "/chat/completions",
        "model": "m",
        "status": 200,
        "prompt_tokens": 300,
        "completion_tokens": 50,
        "cost_usd": 0.5,
        "seconds": 1.0,
        "created_at": datetime.now(UTC),
    }
    with keyed.store.begin() as connection:
        connection.execute(sa.insert(tables.requests), [{**row, "id": new_id()} for _ in range(2)])
    async with sign_in(keyed) as client:
        items = (await client.get("/people.json")).json()["items"]
        used = next(item for item in items if item["name"] == "worker")["used"]
        team = (await client.get("/people/teams.json")).json()["items"][0]
        assert "700" in (await client.get("/people")).text
    assert (used["requests_minute"], used["tokens_minute"], used["cost_day"]) == (2, 700, 1.0)
    assert (team["tokens_day"], team["environments_most"]) == (700, 64)


@pytest.mark.slow
async def test_who_did_what_is_in_the_audit_log_whichever_way_it_was_done(keyed):
    _, secret = keyed.keys.mint("script", LOCAL_TEAM, scopes=("admin",))
    async with browse(keyed.app) as program, sign_in(keyed) as client:
        program.headers["authorization"] = f"Bearer {secret}"
        await program.post("/v2/keys", json={"name": "by the API"})
        await program.delete("/v2/keys/by%20the%20API")
        task = {"name": "one", "env": "shop", "task_id": "buy", "args": {}}
        await program.post("/v2/tasks/upload", json={"taskset_name": "fruit", "tasks": [task]})
        await client.post("/people/keys", data=FORM)
        assert await actions(keyed) == [
            ("key created", "laptop"),
            ("taskset changed", "fruit"),
            ("key revoked", "by the API"),
            ("key created", "by the API"),
            ("signed in", "browser"),
        ]
        log = (await client.get("/people/audit.json?action=taskset+changed")).json()
        assert [entry["who"] for entry in log["items"]] == ["script"]
        page = (await client.get("/people/audit")).text
        assert "fruit" in page
        assert "hud_" not in page.replace("hud_session", "")


@pytest.mark.slow
async def test_a_name_of_a_key_cannot_hold_a_page_of_its_own(web):
    await web.post("/people/keys", data={**FORM, "name": "<script>alert(1)</script>"})
    for path in ("/people", "/people/audit"):
        page = (await web.get(path)).text
        assert "<script>alert" not in page
        assert "&lt;script&gt;" in page


async def test_the_form_of_a_new_key_says_what_each_scope_may(web):
    page = (await web.get("/people/new")).text
    for scope in ("read", "run", "train", "admin"):
        assert f'value="{scope}"' in page


@pytest.mark.slow
async def test_heads_moved_and_models_forked_on_pages_are_in_the_audit_log(web, platform):
    model = make_model(platform)
    assert (await web.post("/models/m/fork", data={"name": "mine"})).status_code == 303
    first = made(platform, model, 1)
    assert (await web.post("/models/m/head", data={"checkpoint": "base"})).status_code == 303
    log = (await web.get("/people/audit.json")).json()["items"]
    assert [(entry["action"], entry["subject"]) for entry in log] == [
        ("head moved", "m"),
        ("model forked", "mine"),
    ]
    assert (log[0]["details"]["before"], log[0]["details"]["after"]) == (first, None)
