"""Run passes at a platform without keys: a request with one has its identity alone. Plain ASGI."""

from __future__ import annotations

from hud_platform.access.middleware import App, Receive, Scope, Send, refuse, secret_of
from hud_platform.access.passes import PREFIX, Passes
from hud_platform.access.paths import refusal


class PassDoor:
    """Sets the identity of requests with a pass, and passes other requests to `others`."""

    def __init__(self, app: App, passes: Passes, others: App | None = None) -> None:
        """`others` None: `app`."""
        self.app = app
        self.passes = passes
        self.others = others or app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        secret = None if scope["type"] == "lifespan" else secret_of(scope)
        if secret is None or not secret.startswith(PREFIX):
            await self.others(scope, receive, send)
            return
        who = self.passes.read(secret)
        if who is None:
            await refuse(scope, send, 401, "This pass is invalid or has expired.", {})
            return
        bounds = refusal(who, scope["path"])
        if bounds is not None:
            await refuse(scope, send, 403, bounds, {})
            return
        scope.setdefault("state", {})["identity"] = who
        await self.app(scope, receive, send)


async def refuse_others(scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse a request without a pass, where only passes are accepted."""
    del receive
    if scope["type"] != "lifespan":
        await refuse(scope, send, 401, "This address takes run passes alone.", {})
