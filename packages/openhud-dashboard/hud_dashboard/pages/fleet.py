"""The fleet: its nodes with their load, and the passes with which machines join it."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Request, Response

from hud.errors import PlatformError, UsageError
from hud_dashboard.page import Data, Offset, Pages, Sent, paged, see
from hud_dashboard.rendering import page
from hud_platform.access.identity import FLEET, Identity
from hud_platform.access.keys import Keys, is_pass
from hud_platform.access.teams import Teams
from hud_platform.dependencies import Audit, KeysPart, StorePart, Team, Who, part
from hud_platform.rollouts.nodes import STATES, Nodes

router = Pages()
PER_PAGE = 50


NodesPart = Annotated[Nodes, part(lambda parts: parts.fleet.nodes)]


@router.page("/fleet", "fleet.html")
def fleet(nodes: NodesPart, team: Team) -> Data:
    """The team's nodes, those that live first."""
    items = nodes.all(team)
    live = [node for node in items if node["status"] not in ("left", "lost")]
    return {
        "items": items,
        "total": len(items),
        "notice_text": nodes.notice(items),
        "running": sum(node["running"] for node in live),
        "room": sum(node["room"] for node in live),
        "per_minute": sum(node["per_minute"] for node in live),
        "alarms": [node for node in live if node["alarm"]],
        "versions": sorted({node["version"] for node in live}),
    }


@router.action("/fleet/nodes/{node_id}/{action}", "admin")
def set_state(
    nodes: NodesPart,
    team: Team,
    log: Audit,
    node_id: str,
    action: Literal["cordon", "open", "drain"],
) -> Response:
    """Cordon, drain or open a node."""
    state, noted = STATES[action]
    node = nodes.set_state(team, node_id, state)
    log.note(noted, node["name"], node_id=node["id"])
    return see("/fleet")


@router.page("/fleet/passes", "fleet_passes.html")
def passes(keys: KeysPart, who: Who, offset: Offset = 0) -> Data:
    """The team's passes."""
    who.require("admin")
    return _passes(keys, who, offset, None)


@router.action("/fleet/passes", "admin", "fleet_passes.html")
def make_pass(
    request: Request, store: StorePart, keys: KeysPart, who: Who, log: Audit, sent: Sent
) -> Response | Data:
    """Make a pass, and show its secret: in this answer, and never again."""
    try:
        maker = keys.by_id(who.key_id) if who.key_id else None
        made, secret = keys.mint(sent.get("name", ""), who.team_id, scopes=(FLEET,), maker=maker)
    except (UsageError, PlatformError) as error:
        return _passes(keys, who, 0, str(error))
    log.note("pass created", made.name, **made.noted())
    team = Teams(store).find(made.team_id).name
    return page(request, "people_key.html", {"key": made.shown(), "secret": secret, "team": team})


@router.action("/fleet/passes/{key_id}/revoke", "admin")
def revoke_pass(keys: KeysPart, who: Who, log: Audit, key_id: str) -> Response:
    """Revoke a pass; its workers are refused at once."""
    revoked = keys.revoke(who.team_id, key_id)
    log.note("pass revoked", revoked.name, **revoked.noted())
    return see("/fleet/passes")


def _passes(keys: Keys, who: Identity, offset: int, problem: str | None) -> Data:
    shown, total = keys.page(who.team_id, PER_PAGE, offset, is_pass())
    items = [{**key.shown(), "state": "live" if key.valid else "over"} for key in shown]
    return {"items": items, **paged(total, PER_PAGE, offset), "problem": problem}
