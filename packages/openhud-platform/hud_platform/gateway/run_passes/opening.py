"""Opening of run passes: the grant, the signed pass for the program, and the token that ends it."""

from __future__ import annotations

import asyncio
from typing import Any

from hud.errors import NotFoundError, UsageError
from hud.trace import SamplingParams, new_id, trace_id_of
from hud_platform.access.identity import Identity
from hud_platform.access.passes import Passes
from hud_platform.access.run_grant import RunGrant
from hud_platform.access.signed_links import SignedLinks
from hud_platform.gateway.catalogue import Catalogue
from hud_platform.gateway.run_passes.run_calls import RunCalls
from hud_platform.store.clock import steady_time

END = "end of a run pass"
"""Purpose of the token that ends a pass."""
END_SECONDS = 7 * 24 * 3600.0
"""Time for which a pass can be ended after its expiry."""


class RunPasses:
    """Opens and ends run passes."""

    def __init__(
        self, catalogue: Catalogue, calls: RunCalls, passes: Passes, links: SignedLinks
    ) -> None:
        self._catalogue = catalogue
        self._calls = calls
        self._passes = passes
        self._links = links

    async def open(self, who: Identity, settings: dict[str, Any]) -> dict[str, Any]:
        """Return `{id, key, token, expires_at}`.

        Raises `NotFoundError` for an unknown model or another team's run, and `UsageError` for sampling that cuts the
        distribution of a run that is trained on.
        """
        grant = _grant(settings)
        for reference in (grant.reference, grant.side_model):
            if reference is not None:
                await self._catalogue.find(who.team_id, reference)
        seconds = settings["seconds"]
        expires = await asyncio.to_thread(
            self._calls.store.open, grant, who.team_id, who.key_id, seconds
        )
        until = steady_time() + seconds + END_SECONDS
        return {
            "id": grant.pass_id,
            "key": self._passes.make(_program(who, grant), seconds),
            "token": self._links.make(END, grant.pass_id, who, until),
            "expires_at": expires.isoformat(),
        }

    async def end(self, who: Identity, pass_id: str, token: str) -> dict[str, Any]:
        """End a pass: see `RunCalls.end`. Raises `NotFoundError` for the token of another pass."""
        if await asyncio.to_thread(self._links.subject, END, token) != pass_id:
            raise NotFoundError("This token is for another run pass.")
        return await self._calls.end(who.team_id, pass_id)


def _grant(settings: dict[str, Any]) -> RunGrant:
    sampling = settings["sampling"]
    if settings["trainable"] and SamplingParams(**sampling).truncates:
        raise UsageError(
            "top_p and top_k cut the distribution, so that the run's turns cannot be trained on; leave them out, or set "
            "trainable to false."
        )
    names = ("model", "checkpoint", "side_model", "trainable")
    return RunGrant(
        pass_id=new_id(),
        trace_id=trace_id_of(settings["trace_id"]),
        side_names=tuple(settings["side_names"]),
        sampling=sampling,
        **settings["limits"],
        **{name: settings[name] for name in names if name in settings},
    )


def _program(who: Identity, grant: RunGrant) -> Identity:
    """Return the identity of the program that plays a run: model calls alone, which count for the opener's key."""
    return Identity(
        team_id=who.team_id,
        scopes=frozenset({"run"}),
        key_id=who.key_id,
        user_id=who.user_id,
        inference_only=True,
        requests_per_minute=who.requests_per_minute,
        tokens_per_minute=who.tokens_per_minute,
        shared_limits=who.shared_limits,
        run=grant,
    )
