"""`AttemptSnapshots`: the snapshots of an attempt's run, stored by the platform for the next attempt."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

from hud import exact_json
from hud.client import Client


class AttemptSnapshots:
    """Store of the last snapshot of the rollout that a worker's lease is for."""

    def __init__(self, client: Client, worker: str, lease: dict[str, Any]) -> None:
        self._client = client
        self._has_one = bool(lease.get("snapshot"))
        names = ("trace_id", "attempt")
        self._lease = {"worker": worker, **{name: lease[name] for name in names}}

    async def last(self) -> bytes | None:
        """Return the snapshot of the attempts before; None without one. Raises `PlatformError`."""
        if not self._has_one:
            return None
        answer = await self._client.post("/v2/fleet/snapshot/last", self._lease, retry=True)
        return None if answer["data"] is None else b64decode(answer["data"])

    async def keep(self, data: bytes | None) -> None:
        """Store a snapshot in place of the one before; None: delete it. Raises `PlatformError`."""
        body = exact_json.dumps(self._lease) + b"\n" + (data or b"")
        await self._client.post("/v2/fleet/snapshot", body, retry=True)
