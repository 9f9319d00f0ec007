"""DevTools endpoint of a run's browser for clients: a WebSocket on the loopback.

The browser itself listens on no port. Each client has its own browser session, concurrent with the environment's. The
address contains a secret; commands that would close the browser are refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from hud import exact_json
from hud.capabilities.browser.devtools import DevTools
from hud.capabilities.browser.page import PAINTED, VIEWPORT, is_web_address
from hud.capabilities.browser.tabs import MOST_TABS, Tabs
from hud.errors import RolloutError

if TYPE_CHECKING:
    from websockets.asyncio.server import Server, ServerConnection
    from websockets.http11 import Request, Response

_COMMAND_SECONDS = 300.0
_GONE = 4001
_REFUSED = frozenset({"Browser.close", "Browser.crash", "Browser.crashGpuProcess", "Page.crash"})
_CLOSING = frozenset({"Page.close", "Target.closeTarget"})
_OPENING = frozenset({"Page.navigate", "Target.createTarget"})
_SCREEN_DOMAINS = {
    "Browser": "getVersion",
    "Input": "dispatchKeyEvent dispatchMouseEvent insertText",
    "Inspector": "enable",
    "Page": "bringToFront captureScreenshot close enable getLayoutMetrics getNavigationHistory handleJavaScriptDialog "
    "navigate navigateToHistoryEntry reload",
    "Runtime": "enable runIfWaitingForDebugger",
    "Target": "activateTarget attachToTarget closeTarget createTarget detachFromTarget getTargets setAutoAttach "
    "setDiscoverTargets",
}
_SCREEN = {
    f"{domain}.{name}" for domain, names in _SCREEN_DOMAINS.items() for name in names.split()
}
"""Commands of a screen's user. Others execute JavaScript, or change documents, requests or storage."""
_SCREEN_EXPRESSIONS = frozenset({PAINTED, VIEWPORT})


class Gateway:
    """Server of one browser for any number of clients."""

    def __init__(self, devtools: DevTools, tabs: Tabs, *, screen_only: bool = False) -> None:
        self.devtools, self.tabs = devtools, tabs
        self.screen_only = screen_only
        """True: clients may use screen, mouse, keyboard and http addresses alone."""
        token = secrets.token_hex(16)
        self.browser_path = f"/devtools/browser/{token}"
        self.page_path = f"/devtools/page/{token}"
        """Path of the foreground tab at a client's connection."""
        self.port = 0
        self.last_shot: str | None = None
        """The latest screenshot by a client (base64 of a PNG); None after any later command."""
        self.commands = 0
        """Number of commands that clients have sent."""
        self.grading = False
        """True after the agent's end: new connections are refused."""
        self._server: Server | None = None
        self._sockets: set[ServerConnection] = set()

    async def start(self) -> None:
        """Listen on a free port of the loopback."""
        from websockets.asyncio.server import serve

        self._server = await serve(
            self._serve, "127.0.0.1", 0, process_request=self._admit,
            max_size=None, ping_interval=None, compression=None,
        )  # fmt: skip
        self.port = self._server.sockets[0].getsockname()[1]

    def hang_up(self) -> None:
        """Close every connection, without waiting for the clients."""
        for socket in self._sockets:
            socket.transport.abort()

    async def close(self) -> None:
        """Close all connections and stop listening."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        if self.grading:
            return connection.respond(HTTPStatus.FORBIDDEN, "The answer is being graded.\n")
        if request.path in (self.browser_path, self.page_path):
            return None
        return connection.respond(HTTPStatus.NOT_FOUND, "There is nothing here.\n")

    async def _serve(self, socket: ServerConnection) -> None:
        page = socket.request is not None and socket.request.path == self.page_path
        client = _Client(self, socket)
        self.devtools.listen(client.heard)
        self._sockets.add(socket)
        try:
            await client.serve(page=page)
        finally:
            self._sockets.discard(socket)
            self.devtools.unlisten(client.heard)
            await client.leave()


class _Client:
    """A client: its browser session and the tab sessions below it."""

    def __init__(self, gateway: Gateway, socket: ServerConnection) -> None:
        self.gateway, self.socket = gateway, socket
        self.root: str | None = None
        """The session of messages without a session id."""
        self.browser_session: str | None = None
        self.sessions: set[str] = set()
        self.outbox: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.busy: set[asyncio.Task[None]] = set()

    async def serve(self, *, page: bool) -> None:
        from websockets.exceptions import ConnectionClosed

        devtools = self.gateway.devtools
        attached = await devtools.call("Target.attachToBrowserTarget")
        self.browser_session = self.root = str(attached["sessionId"])
        self.sessions.add(self.root)
        if page:
            attached = await devtools.call(
                "Target.attachToTarget",
                {"targetId": self.gateway.tabs.front.target_id, "flatten": True},
                session=self.browser_session,
            )
            self.root = str(attached["sessionId"])
            self.sessions.add(self.root)
        sending = asyncio.create_task(self._send())
        try:
            with contextlib.suppress(ConnectionClosed):
                async for text in self.socket:
                    self._take(text)
        finally:
            for task in [*self.busy, sending]:
                task.cancel()
            await asyncio.wait([*self.busy, sending])

    async def leave(self) -> None:
        """Detach the session, and with it those below."""
        if self.browser_session is not None:
            with contextlib.suppress(RolloutError):
                await self.gateway.devtools.call(
                    "Target.detachFromTarget", {"sessionId": self.browser_session}
                )

    def heard(self, method: str, params: dict[str, Any], session: str | None) -> None:
        """Forward an event of this client's sessions."""
        if session not in self.sessions or session is None:
            return
        if method == "Target.attachedToTarget":
            self.sessions.add(params["sessionId"])
        elif method == "Target.detachedFromTarget":
            self.sessions.discard(params.get("sessionId", ""))
        self._answer({"method": method, "params": params}, session)

    def _take(self, text: str | bytes) -> None:
        try:
            message = exact_json.loads(text)
            identifier, method = int(message["id"]), str(message["method"])
            params = dict(message.get("params") or {})
            session = str(message.get("sessionId") or self.root)
        except (ArithmeticError, KeyError, RecursionError, TypeError, ValueError):
            self._answer({"error": {"code": -32700, "message": "That is no command."}}, self.root)
            return
        problem = self._refusal(method, params)
        if session not in self.sessions:
            problem = {"code": -32001, "message": "Session with given id not found."}
        if problem is not None:
            self._answer({"id": identifier, "error": problem}, session)
            return
        self.gateway.last_shot = None
        self.gateway.commands += 1
        task = asyncio.create_task(self._ask(identifier, method, params, session))
        self.busy.add(task)
        task.add_done_callback(self.busy.discard)

    def _refusal(self, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        """Return the error for a command that would close the browser, or that is more than a screen's."""
        if self.gateway.screen_only and not _is_of_a_screen(method, params):
            refusal = f"{method} is refused: this browser's agents have screen, mouse, keyboard and http addresses."
            return {"code": -32000, "message": refusal}
        if method == "Target.createTarget" and len(self.gateway.tabs) >= MOST_TABS:
            refusal = f"This browser has {MOST_TABS} tabs, the most it may have; close one first."
            return {"code": -32000, "message": refusal}
        url = str(params.get("url", "")).lower().lstrip()
        if (
            method in _REFUSED
            or (method in _OPENING and url.startswith(("chrome:", "devtools:")))
            or (method in _CLOSING and len(self.gateway.tabs) < 2)
        ):
            return {"code": -32000, "message": f"{method} would end the browser of this run."}
        return None

    async def _ask(
        self, identifier: int, method: str, params: dict[str, Any], session: str
    ) -> None:
        devtools, number = self.gateway.devtools, self.gateway.commands
        try:
            reply = await devtools.exchange(method, params, session, _COMMAND_SECONDS)
        except RolloutError as error:
            reply = {"error": {"code": -32000, "message": str(error)}}
        answer: dict[str, Any] = {key: reply[key] for key in ("result", "error") if key in reply}
        alone = number == self.gateway.commands
        if alone and method == "Page.captureScreenshot" and params == {"format": "png"}:
            self.gateway.last_shot = (reply.get("result") or {}).get("data")
        self._answer({"id": identifier, **answer}, session)
        if devtools.lost:
            self.outbox.put_nowait(None)

    def _answer(self, message: dict[str, Any], session: str | None) -> None:
        if session != self.root:
            message["sessionId"] = session
        self.outbox.put_nowait(exact_json.dumps(message))

    async def _send(self) -> None:
        from websockets.exceptions import ConnectionClosed

        with contextlib.suppress(ConnectionClosed):
            while (message := await self.outbox.get()) is not None:
                await self.socket.send(message, text=True)
            await self.socket.close(_GONE, "the browser has ended")


def _is_of_a_screen(method: str, params: dict[str, Any]) -> bool:
    """Return True for a command that a user of screen, mouse, keyboard and addresses could give."""
    if method == "Runtime.evaluate":
        return str(params.get("expression")) in _SCREEN_EXPRESSIONS
    if method in _OPENING:
        url = str(params.get("url", ""))
        return is_web_address(url) or url == "about:blank"
    # A script can be evaluated on each new document, also at a reload.
    return method in _SCREEN and "scriptToEvaluateOnLoad" not in params
