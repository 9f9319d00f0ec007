"""Pages of access: keys, teams with their usage, and the audit log."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response

from hud.errors import PlatformError, UsageError
from hud_dashboard.page import Data, Offset, Pages, Sent, paged, see
from hud_dashboard.queries.key_usage import Use, team_use, use_by_key
from hud_dashboard.rendering import page
from hud_platform.access import SCOPES, Identity, Scope, audit_log
from hud_platform.access.keys import Key, Keys, is_valid_key
from hud_platform.access.teams import Teams
from hud_platform.dependencies import (
    Audit,
    ConfigPart,
    KeysPart,
    RuntimeSessionsPart,
    StorePart,
    Who,
)
from hud_platform.store import Store, tables

router = Pages()
PER_PAGE = 50
MOST_CHOICES = 200
"""Maximum number of keys of the audit log's filter."""
DAY = 86_400.0
LIFETIMES = {"": None, "1": DAY, "7": 7 * DAY, "30": 30 * DAY, "90": 90 * DAY, "365": 365 * DAY}
"""Lifetimes of a new key in seconds, by the form's days; None: unlimited."""
MEANINGS: dict[Scope, str] = {
    "read": "read all data of the team",
    "run": "and inference, rollouts, tasksets, human baselines",
    "train": "and training, forks, heads, deploys",
    "admin": "and keys, people, models of this server's disk",
}
FIELDS = ("name", "scope", "lifetime", "requests_per_minute", "tokens_per_minute", "team")
_MOST = 2**31 - 1


@router.get("/settings")
def settings() -> Response:
    """Redirect from the path that HUD's clients print for creating keys."""
    return see("/people")


@router.page("/people", "people.html")
def people(
    store: StorePart,
    keys: KeysPart,
    config: ConfigPart,
    who: Who,
    state: str = "live",
    offset: Offset = 0,
) -> Data:
    """The team's keys for admins; the caller's own key for others."""
    visible = () if who.may("admin") else (tables.keys.c.id == who.key_id,)
    states = () if state == "all" else (is_valid_key(),)
    shown, total = keys.page(who.team_id, PER_PAGE, offset, *visible, *states)
    used = use_by_key(store, who.team_id)
    return {
        "items": [_key(key, used.get(key.id, Use())) for key in shown],
        **paged(total, PER_PAGE, offset),
        "hidden": keys.count(who.team_id, *visible) - total,
        "state": state,
        "own": who.key_id,
        "keys_wanted": config.keys,
    }


@router.page("/people/new", "people_new.html")
def new_key(store: StorePart, who: Who) -> Data:
    """The form of a new key."""
    who.require("admin")
    return _form(store, who, dict.fromkeys(FIELDS, ""), None)


@router.action("/people/keys", "admin", "people_new.html")
def make_key(
    request: Request,
    store: StorePart,
    keys: KeysPart,
    who: Who,
    log: Audit,
    sent: Sent,
) -> Response | Data:
    """Create a key and show its secret, which is only in this response."""
    form = {field: sent.get(field, "") for field in FIELDS}
    name, scope, lifetime = form["name"], form["scope"], form["lifetime"]
    try:
        if not name.strip():
            raise UsageError("A key needs a name that describes its purpose.")
        if scope not in SCOPES:
            raise UsageError(f"There is no scope {scope!r}; there are {', '.join(SCOPES)}.")
        if lifetime not in LIFETIMES:
            raise UsageError("Choose one of the lifetimes.")
        requests = _limit("Requests a minute", form["requests_per_minute"])
        tokens = _limit("Tokens a minute", form["tokens_per_minute"])
        key, secret = keys.mint(
            name,
            Teams(store).for_key_of(who.team_id, form["team"].strip() or None),
            scopes=(scope,),
            expires_in=LIFETIMES[lifetime],
            requests_per_minute=requests,
            tokens_per_minute=tokens,
            maker=keys.by_id(who.key_id) if who.key_id else None,
        )
    except (UsageError, PlatformError) as error:
        return _form(store, who, form, str(error))
    log.note("key created", key.name, **key.noted())
    data = {
        "key": key.shown(),
        "secret": secret,
        "team": Teams(store).find(key.team_id).name,
    }
    return page(request, "people_key.html", data)


@router.action("/people/keys/{key_id}/revoke", "admin")
def revoke_key(keys: KeysPart, who: Who, log: Audit, key_id: str) -> Response:
    """Revoke a key, including the one of this session."""
    revoked = keys.revoke(who.team_id, key_id)
    log.note("key revoked", revoked.name, **revoked.noted())
    return see("/people")


@router.page("/people/teams", "people_teams.html")
def teams(store: StorePart, keys: KeysPart, sessions: RuntimeSessionsPart, who: Who) -> Data:
    """The teams visible to the caller, each with quotas and usage."""
    all_teams = Teams(store).all()
    every = who.may("admin") and who.team_id == all_teams[0].id
    shown = [team for team in all_teams if every or team.id == who.team_id]
    items = [
        {"id": team.id, "name": team.name, **team_use(store, keys, sessions, team.id)}
        for team in shown
    ]
    return {"items": items, "own": who.team_id}


@router.page("/people/audit", "people_audit.html")
def audit(
    store: StorePart,
    keys: KeysPart,
    who: Who,
    action: str = "",
    key: str = "",
    offset: Offset = 0,
) -> Data:
    """The audit log."""
    who.require("admin")
    items, total = audit_log.page(
        store, who.team_id, PER_PAGE, offset, action=action or None, key_id=key or None
    )
    for item in items:
        item["place"] = _place(item)
    return {
        "items": items,
        **paged(total, PER_PAGE, offset),
        "actions": audit_log.ACTIONS,
        "keys": _choices(keys, who.team_id, key),
    }


def _choices(keys: Keys, team: str, chosen: str) -> list[tuple[str, str]]:
    """Return id and name of the team's newest keys, and of the chosen one."""
    newest, _ = keys.page(team, MOST_CHOICES, 0)
    if all(key.id != chosen for key in newest):
        newest += keys.page(team, 1, 0, tables.keys.c.id == chosen)[0]
    return [(key.id, key.name) for key in newest]


def _key(key: Key, used: Use) -> dict[str, Any]:
    state = "revoked" if key.revoked_at else "live" if key.valid else "expired"
    return {**key.shown(), "id": key.id, "state": state, "used": used.shown()}


def _form(store: Store, who: Identity, form: dict[str, str], problem: str | None) -> Data:
    registry = Teams(store)
    return {
        "given": form,
        "problem": problem,
        "scopes": [{"name": scope, "meaning": MEANINGS[scope]} for scope in SCOPES],
        "teams": [team.name for team in registry.all()]
        if who.team_id == registry.default().id
        else [],
    }


def _limit(what: str, text: str) -> int | None:
    """Return a limit from a form. Raises `UsageError` for an invalid number."""
    plain = text.replace(",", "").replace("_", "").strip()
    if not plain:
        return None
    if not plain.isascii() or not plain.isdigit() or not 0 < int(plain[:20]) <= _MOST:
        raise UsageError(f"{what} must be a whole number greater than 0, or empty for no limit.")
    return int(plain)


def _place(entry: dict[str, Any]) -> str | None:
    """Return the page of the subject of an entry in the audit log."""
    details = entry["details"]
    if "taskset_id" in details:
        return f"/tasksets/{details['taskset_id']}"
    if "training_run" in details:
        return f"/train/{details['training_run']}"
    if "model_id" in details and entry["action"] != "model removed":
        return f"/models/{details['model_id']}"
    if "build_id" in details:
        return f"/environments/builds/{details['build_id']}"
    return None
