"""Pages of API keys and integrations."""

from __future__ import annotations

from datetime import date
from typing import Any

from starlette.responses import Response

from hud_benchmarks.autonomy.applications.settings.flow import Field, Step, agreed, follow, typed
from hud_benchmarks.autonomy.applications.settings.panel import members, pages, shown
from hud_benchmarks.autonomy.applications.settings.seed import EVENTS, NETWORKS, SCOPES
from hud_benchmarks.autonomy.web.application import TODAY
from hud_benchmarks.autonomy.web.pages import Visit

KEYS = "SELECT k.*, m.name AS owner FROM keys k LEFT JOIN members m ON m.id = k.owner_id"
INTEGRATIONS = "SELECT i.*, m.name AS owner FROM integrations i LEFT JOIN members m ON m.id = i.owner_id"  # fmt: skip


@pages.get("/keys")
def keys(visit: Visit) -> Response:
    text = f"%{visit.query.get('text', '')}%"
    where, values = "(k.name LIKE ? OR m.name LIKE ?)", [text, text]
    if visit.query.get("status"):
        where, values = f"{where} AND k.status = ?", [*values, visit.query["status"]]
    return visit.page("keys.html", listing=visit.listing(f"{KEYS} WHERE {where} ORDER BY k.id", *values))  # fmt: skip


@pages.get("/keys/{id:int}")
def key(visit: Visit) -> Response:
    scopes = visit.rows("SELECT name FROM scopes WHERE key_id = ? ORDER BY rowid", visit.id)
    return visit.page("key.html", key=visit.row(f"{KEYS} WHERE k.id = ?", visit.id), scopes=scopes)


@pages.get("/keys/new")
@pages.post("/keys/new")
def new_key(visit: Visit) -> Response:
    form, scopes = visit.form, visit.several("scopes")
    steps = [
        Step("New API key", [Field("Name", "name"), Field("Owner", "owner", members(visit))]),
        Step("Scopes", [Field("Scopes", "scopes", SCOPES, several=True)]),
        Step(
            "Limits of the key",
            [Field("Network", "network", NETWORKS), Field("Expires on", "expires")],
            note="Write the day like 2026-03-02.",
            check=_later,
        ),
        Step(
            "Create the key?",
            facts=[
                ("Name", form.get("name")), ("Owner", shown(members(visit), form.get("owner"))),
                ("Scopes", ", ".join(scopes)), ("Network", form.get("network")), ("Expires on", form.get("expires")),
            ],
            button="Create key",
        ),
    ]  # fmt: skip
    page = follow(visit, steps, cancel="/keys")
    if page is not None:
        return page
    made = visit.insert(
        "keys", name=form["name"], owner_id=form["owner"], network=form["network"], expires=form["expires"],
        status="active",
    )  # fmt: skip
    for scope in scopes:
        visit.execute("INSERT INTO scopes VALUES (?, ?)", made, scope)
    return visit.go(f"/keys/{made}", f"The key {form['name']} is created.")


@pages.get("/keys/{id:int}/revoke")
@pages.post("/keys/{id:int}/revoke")
def revoke(visit: Visit) -> Response:
    key = visit.row(f"{KEYS} WHERE k.id = ? AND k.status = 'active'", visit.id)
    confirmation, check = typed("Name of the key", key["name"])
    steps = [
        Step(
            f"Revoke {key['name']}?",
            [confirmation],
            note=f"What uses the key stops working at once. Type {key['name']} to confirm.",
            button="Revoke key",
            check=check,
        )
    ]
    page = follow(visit, steps, cancel=f"/keys/{visit.id}")
    if page is not None:
        return page
    visit.update("keys", visit.id, status="revoked")
    return visit.go(f"/keys/{visit.id}", f"The key {key['name']} is revoked.")


@pages.get("/integrations")
def integrations(visit: Visit) -> Response:
    return visit.page("integrations.html", integrations=visit.rows(f"{INTEGRATIONS} ORDER BY i.name"))  # fmt: skip


@pages.get("/integrations/{id:int}")
def integration(visit: Visit) -> Response:
    events = visit.rows("SELECT event FROM subscriptions WHERE integration_id = ?", visit.id)
    return visit.page("integration.html", integration=_integration(visit), events=events)


@pages.get("/integrations/{id:int}/connect")
@pages.post("/integrations/{id:int}/connect")
def connect(visit: Visit) -> Response:
    """Choose owner and channel, then events, then agree to the terms; also for one that is connected."""
    integration_row, form, events = _integration(visit), visit.form, visit.several("events")
    name = integration_row["name"]
    steps = [
        Step(
            f"Connect {name}",
            [Field("Owner", "owner", members(visit)), Field("Channel", "channel")],
            note="Channels are written like #general.",
            check=lambda form: None if form["channel"].startswith("#") else "Channel: it begins with #.",
        ),
        Step(f"Events for {name}", [Field("Events", "events", EVENTS, several=True)]),
        Step(
            f"Connect {name} now?",
            [agreed("I agree to the terms")],
            note=f"{name} will read the events that you chose.",
            facts=[
                ("Owner", shown(members(visit), form.get("owner"))), ("Channel", form.get("channel")),
                ("Events", ", ".join(events)),
            ],
            button="Connect",
        ),
    ]  # fmt: skip
    before = visit.rows("SELECT event FROM subscriptions WHERE integration_id = ?", visit.id)
    values = {
        "owner": integration_row["owner_id"] or "", "channel": integration_row["channel"], "events": [row["event"] for row in before]
    }  # fmt: skip
    page = follow(visit, steps, cancel=f"/integrations/{visit.id}", values=values)
    if page is not None:
        return page
    _subscribe(visit, events)
    visit.update(
        "integrations", visit.id, status="connected", owner_id=form["owner"], channel=form["channel"]
    )  # fmt: skip
    return visit.go(f"/integrations/{visit.id}", f"{name} is connected.")


@pages.get("/integrations/{id:int}/disconnect")
@pages.post("/integrations/{id:int}/disconnect")
def disconnect(visit: Visit) -> Response:
    integration_row = _integration(visit)
    steps = [
        Step(
            f"Disconnect {integration_row['name']}?",
            [agreed("I know that its settings are lost")],
            button="Disconnect",
        )
    ]
    page = follow(visit, steps, cancel=f"/integrations/{visit.id}")
    if page is not None:
        return page
    _subscribe(visit, [])
    visit.update("integrations", visit.id, status="off", owner_id=None, channel="")
    return visit.go("/integrations", f"{integration_row['name']} is disconnected.")


def _integration(visit: Visit) -> Any:
    return visit.row(f"{INTEGRATIONS} WHERE i.id = ?", visit.id)


def _subscribe(visit: Visit, events: list[str]) -> None:
    visit.execute("DELETE FROM subscriptions WHERE integration_id = ?", visit.id)
    for event in events:
        visit.execute("INSERT INTO subscriptions VALUES (?, ?)", visit.id, event)


def _later(form: Any) -> str | None:
    """Return a sentence where the key would not expire on a day to come."""
    try:
        day = date.fromisoformat(form["expires"])
    except ValueError:
        day = None
    late = day is not None and day > TODAY and day.isoformat() == form["expires"]
    return None if late else f"Expires on: a day after {TODAY.isoformat()}."
