"""Saving and removing views of lists."""

from __future__ import annotations

from fastapi import Response

from hud_dashboard.page import Pages, Sent, see
from hud_dashboard.queries.saved_views import remove_view, save_view
from hud_platform.dependencies import StorePart, Team

router = Pages()


@router.action("/views", "run")
def save(store: StorePart, team: Team, form: Sent) -> Response:
    """Save the list at the form's `address` under its `name`."""
    address = form.get("address") or ""
    save_view(store, team, form.get("name") or "", address)
    return see(address)


@router.action("/views/{view_id}/remove", "run")
def remove(store: StorePart, team: Team, view_id: str) -> Response:
    """Remove a view."""
    return see(remove_view(store, team, view_id))
