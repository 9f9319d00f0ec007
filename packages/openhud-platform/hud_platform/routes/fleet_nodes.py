"""Routes of people who run the fleet.

GET, POST /v2/fleet-passes      DELETE /v2/fleet-passes/{pass}
GET /v2/fleet-nodes      POST /v2/fleet-nodes/{node}/cordon | open | drain
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from hud.errors import NotFoundError
from hud_platform.access.identity import FLEET
from hud_platform.access.keys import Keys, is_pass
from hud_platform.dependencies import ADMIN, READ, Audit, KeysPart, Limit, Offset, Team, Who
from hud_platform.rollouts.nodes import STATES
from hud_platform.routes.fleet import NodesPart

router = APIRouter(prefix="/v2", tags=["fleet"])


class NewPass(BaseModel):
    """A pass to make."""

    name: str
    expires_in: Annotated[float | None, Field(gt=0, le=100 * 365 * 86_400)] = None
    """Seconds."""


@router.get("/fleet-passes", dependencies=ADMIN)
def list_passes(
    keys: KeysPart, team: Team, limit: Limit = 1000, offset: Offset = 0
) -> dict[str, Any]:
    """The team's passes, newest first, without their secrets."""
    passes, total = keys.page(team, limit, offset, is_pass())
    return {"items": [key.shown() for key in passes], "total": total}


@router.post("/fleet-passes", dependencies=ADMIN)
def create_pass(keys: KeysPart, who: Who, audit: Audit, body: NewPass) -> dict[str, Any]:
    """Make a pass of the team. `key` is its secret, shown in this answer and never again."""
    made, secret = keys.mint(
        body.name,
        who.team_id,
        scopes=(FLEET,),
        expires_in=body.expires_in,
        maker=keys.by_id(who.key_id) if who.key_id else None,
    )
    audit.note("pass created", made.name, **made.noted())
    return {**made.shown(), "key": secret}


@router.delete("/fleet-passes/{reference}", dependencies=ADMIN)
def revoke_pass(keys: KeysPart, team: Team, audit: Audit, reference: str) -> dict[str, Any]:
    """Revoke a pass, named by id, start of an id, or name; its workers are refused at once."""
    revoked = keys.revoke(team, _pass(keys, team, reference))
    audit.note("pass revoked", revoked.name, **revoked.noted())
    return dict(revoked.shown())


@router.get("/fleet-nodes", dependencies=READ)
def list_nodes(nodes: NodesPart, team: Team) -> dict[str, Any]:
    """The team's nodes, those that live first; to the first team the server's own workers, too."""
    items = nodes.all(team)
    return {"items": items, "total": len(items), "notice": nodes.notice(items)}


@router.post("/fleet-nodes/{reference}/{action}", dependencies=ADMIN)
def set_state(
    nodes: NodesPart,
    team: Team,
    audit: Audit,
    reference: str,
    action: Literal["cordon", "open", "drain"],
) -> dict[str, Any]:
    """Cordon a node (it takes nothing more), drain it (it ends when it holds nothing), or open it again."""
    state, noted = STATES[action]
    node = nodes.set_state(team, reference, state)
    audit.note(noted, node["name"], node_id=node["id"])
    return node


def _pass(keys: Keys, team: str, reference: str) -> str:
    """Return the id of the one pass of a name, an id or the start of one. Raises `NotFoundError` for a key that is none."""
    matching = keys.matching(team, reference, is_pass())
    if len(matching) != 1:
        raise NotFoundError(f"There is no pass {reference!r}; hud fleet pass list names them.")
    return matching[0].id
