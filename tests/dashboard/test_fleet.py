"""The page of the fleet: nodes, their buttons, and passes."""

import re

import pytest

from hud_platform.access import Identity
from hud_platform.rollouts.nodes import Nodes
from hud_platform.store.tables import LOCAL_TEAM

WORKER = Identity(LOCAL_TEAM, frozenset(), key_id="a" * 32, worker=True)


@pytest.fixture
def node(platform):
    nodes = Nodes(platform.store)
    made = nodes.join(
        WORKER,
        "a worker's secret name",
        shown="<b>spot-1</b>",
        labels={"market": "spot"},
        capacity={"cpus": 4.0, "memory_mb": 8192, "gpus": 1, "rollouts": 32},
        version="1.0",
    )
    load = {"running": 3, "finished": 20, "broken": 9, "failures_in_a_row": 9, "per_minute": 4.0}
    nodes.heard(nodes.of(WORKER, "a worker's secret name"), load)
    return made


async def test_a_node_is_shown_with_its_load_its_labels_and_its_alarm(web, node):
    page = (await web.get("/fleet")).text
    for said in (
        "market=spot",
        "4 cores, 8 GiB, 1 GPU",
        "3 of 32",
        "Its last 9 rollouts all broke",
    ):
        assert said in page, said
    assert "<b>spot-1</b>" not in page
    assert "secret name" not in page
    twin = (await web.get("/fleet.json")).json()
    assert (twin["running"], twin["room"], twin["per_minute"]) == (3, 32, 4.0)


@pytest.mark.slow
async def test_buttons_cordon_open_and_drain(web, node):
    for action, status in (("cordon", "cordoned"), ("open", "open"), ("drain", "draining")):
        answer = await web.post(f"/fleet/nodes/{node}/{action}")
        assert (answer.status_code, answer.headers["location"]) == (303, "/fleet")
        (shown,) = (await web.get("/fleet.json")).json()["items"]
        assert shown["status"] == status


async def test_a_pass_is_made_shown_once_and_revoked(web):
    page = (await web.post("/fleet/passes", data={"name": "spot"})).text
    secret = re.search(r"hud_[A-Za-z0-9_-]{40,}", page)[0]
    listed = await web.get("/fleet/passes")
    assert secret not in listed.text
    (one,) = (await web.get("/fleet/passes.json")).json()["items"]
    assert (one["name"], one["scopes"], one["state"]) == ("spot", ["fleet"], "live")
    await web.post(f"/fleet/passes/{one['id']}/revoke")
    (one,) = (await web.get("/fleet/passes.json")).json()["items"]
    assert one["state"] == "over"
    refused = await web.post("/fleet/passes", data={"name": " "})
    assert (refused.status_code, "needs a name" in refused.text) == (422, True)


@pytest.mark.slow
async def test_a_fleet_that_is_too_large_for_sqlite_is_told_so(web, platform, node):
    who = Nodes(platform.store)
    sqlite = platform.store.engine.dialect.name == "sqlite"
    assert "postgresql" not in (await web.get("/fleet")).text
    more = {"shown": "large", "labels": {}, "capacity": {"rollouts": 4096}, "version": "1.0"}
    who.join(WORKER, "another worker's secret name", **more)
    assert ("hud up --database postgresql" in (await web.get("/fleet")).text) == sqlite
