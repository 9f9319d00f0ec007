"""Whose turn it is where slots are scarce: tenants take turns, and each one's own requests go in order."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hud.engine.sample.request import Request


def take_turn(waiting: deque[Request], active: Sequence[Request]) -> Request:
    """Take a waiting request: the first of the tenant who has the fewest sequences on their way."""
    first = waiting[0].tenant
    if all(request.tenant == first for request in waiting):
        return waiting.popleft()
    busy = Counter(request.tenant for request in active)
    place = min(range(len(waiting)), key=lambda at: busy[waiting[at].tenant])
    request = waiting[place]
    del waiting[place]
    return request
