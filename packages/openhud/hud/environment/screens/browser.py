"""`Browser`: a Chromium with a fresh profile for each run, as a part of an environment."""

from __future__ import annotations

import base64
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from hud.capabilities import Capability
from hud.capabilities.browser.devtools import COMMAND_SECONDS
from hud.capabilities.browser.page import LOAD_SECONDS, NotLoadedError, Page, ThrownError
from hud.capabilities.browser.tabs import Tabs
from hud.environment.part import OpenPart, Part
from hud.environment.screens.browser_network import BrowserNetwork
from hud.environment.screens.chromium import Channel, Chromium
from hud.environment.screens.gateway import Gateway
from hud.environment.screens.run_folders import run_folder
from hud.environment.screens.screen_sandbox import HOME, Box
from hud.environment.workspace.sandbox.limits import MB
from hud.errors import AgentFault, RolloutError, UsageError
from hud.trace import ImageContent

if TYPE_CHECKING:
    from hud.environment.run import EnvironmentRun

_SMALLEST, _LARGEST = 200, 4096
_LEAST_MEMORY_MB = 256


class Browser(Part["OpenBrowser"]):
    """A Chromium with a fresh profile for each run; `env.browser(...)` adds one."""

    def __init__(
        self,
        name: str = "browser",
        *,
        start_url: str = "about:blank",
        viewport: tuple[int, int] = (1024, 768),
        hosts: Sequence[str] | None = None,
        user_agent: str | None = None,
        channel: Channel = "chromium-headless-shell",
        screen_only: bool = False,
        memory_mb: float = 4096,
    ) -> None:
        """`hosts` are the allowed hosts of pages (`127.0.0.1`, `*.example.org`); None: any public one.

        `screen_only`: agents have screen, mouse, keyboard and http addresses, and cannot execute JavaScript; for tasks that
        are graded by the page.

        `memory_mb` is the limit of all its processes, tabs and downloads together, where there are control groups.

        `channel` "chromium" shows PDF files, too, which the headless shell downloads; it takes three times the processor
        time. Where the headless shell is not installed, Chromium is used.
        """
        check_size("viewport", viewport)
        if channel not in get_args(Channel):
            raise UsageError(f"channel must be {' or '.join(get_args(Channel))}, not {channel!r}.")
        if not memory_mb >= _LEAST_MEMORY_MB:
            raise UsageError(f"memory_mb must be at least {_LEAST_MEMORY_MB}, not {memory_mb!r}.")
        self.name = name
        self.start_url = start_url
        self.viewport = viewport
        self.hosts = hosts
        self.user_agent = user_agent
        self.channel = channel
        self.screen_only = screen_only
        self.memory_mb = memory_mb

    @asynccontextmanager
    async def open(self, run: EnvironmentRun) -> AsyncIterator[OpenBrowser]:
        async with AsyncExitStack() as stack:
            folder = await stack.enter_async_context(
                run_folder("browser", reached_by_others=os.geteuid() == 0)
            )
            memory = int(self.memory_mb * MB)
            box = Box(folder, network=False, memory_tmp=True, memory_home=True, memory_bytes=memory)
            network = BrowserNetwork(self.hosts)
            chromium = await Chromium.start(
                box, self.channel, self.viewport, network.flags, self.user_agent
            )
            stack.push_async_callback(chromium.close)
            stack.push_async_callback(network.close)
            await network.open(chromium.program)
            # A separate session, as for every client: a session receives only the events of its own targets.
            session = await chromium.devtools.call("Target.attachToBrowserTarget")
            tabs = Tabs(chromium.devtools, session["sessionId"], self.viewport)
            stack.push_async_callback(tabs.close)
            await tabs.follow(pause=True)
            gateway = Gateway(chromium.devtools, tabs, screen_only=self.screen_only)
            await gateway.start()
            stack.push_async_callback(gateway.close)
            home = await chromium.program.open_folder(HOME)
            stack.callback(os.close, home)
            opened = OpenBrowser(run.name, self, box, chromium, tabs, gateway, network, home)
            if self.start_url != "about:blank":
                await opened.goto(self.start_url)
            yield opened

    @property
    def page(self) -> Page:
        """The foreground tab of this run's browser."""
        return self.opened.tabs.front

    @property
    def downloads(self) -> Path:
        """The folder of this run's downloads; it may not exist yet. It ends with the run, and holds at most 1 GiB."""
        return Path(f"/proc/{os.getpid()}/fd/{self.opened.home}/Downloads")

    async def goto(self, url: str, *, timeout: float = LOAD_SECONDS) -> None:
        """Load `url` in the foreground tab, waiting at most `timeout` seconds.

        A host of this machine or of a private network in `url` is allowed from then on.
        """
        await self.opened.goto(url, timeout=timeout)

    async def evaluate(self, expression: str, *, timeout: float = COMMAND_SECONDS) -> Any:
        """Return the value of a JavaScript expression in the foreground tab; promises are awaited for `timeout` seconds.

        After an agent used the browser, a page that does not answer, or in which the expression throws, is the agent's
        failure: uncaught, the run counts with reward 0. Raises `UsageError` for an expression that does not compile.
        """
        opened = self.opened
        async with opened.whose_fault():
            try:
                return await self.page.evaluate(expression, timeout=timeout)
            except ThrownError as error:
                if not await self.page.compiles(expression):
                    raise UsageError(str(error)) from error
                raise

    async def url(self) -> str:
        """Return the URL of the page."""
        async with self.opened.whose_fault():
            return await self.page.url()

    async def screenshot(self) -> bytes:
        """Return a PNG screenshot."""
        async with self.opened.whose_fault():
            return await self.page.screenshot()


class OpenBrowser(OpenPart):
    """A run's browser."""

    def __init__(
        self,
        run_name: str,
        part: Browser,
        box: Box,
        chromium: Chromium,
        tabs: Tabs,
        gateway: Gateway,
        network: BrowserNetwork,
        home: int,
    ) -> None:
        self.box, self.tabs, self.network = box, tabs, network
        self.home = home
        """Descriptor of the browser's home folder, which is in memory."""
        self._run_name, self._part = run_name, part
        self._chromium, self._gateway = chromium, gateway
        self._shown: str | None = None
        width, height = part.viewport
        self.capability = Capability.cdp(
            part.name,
            url=f"ws://127.0.0.1:{gateway.port}{gateway.page_path}",
            browser_path=gateway.browser_path,
            width=width,
            height=height,
        )

    @property
    def pid(self) -> int:
        """The process of its sandbox."""
        return self._chromium.program.process.pid

    async def goto(self, url: str, *, timeout: float = LOAD_SECONDS) -> None:
        """Load a URL for the environment, allowing its host."""
        await self.network.name(url)
        async with self.whose_fault():
            await self.tabs.front.goto(url, timeout=timeout)

    @asynccontextmanager
    async def whose_fault(self) -> AsyncIterator[None]:
        """Raise `AgentFault` for a failure of the browser after an agent used it; an address that fails is none."""
        try:
            yield
        except RolloutError as fault:
            if self._chromium.devtools.lost:
                await self._chromium.settle()
            self.check()
            unreachable = isinstance(fault, NotLoadedError) and await self.tabs.front.responds()
            if self._gateway.commands and not unreachable:
                raise AgentFault(f"{fault} The agent used this browser before.") from fault
            raise

    async def observe(self) -> dict[str, Any]:
        """Return a screenshot if it differs from the last one."""
        shot = self._gateway.last_shot
        if shot is None:
            try:
                shot = base64.b64encode(await self.tabs.front.screenshot()).decode()
            except RolloutError:
                return {}  # The browser exited (see `fault`), or the page is too busy for a screenshot.
        if shot == self._shown:
            return {}
        self._shown = shot
        return {"screenshot": image_block(shot)}

    def broken_by_agent(self) -> bool:
        return self._gateway.commands > 0 and self._chromium.ended_by_itself

    async def begin_task(self) -> None:
        self._gateway.grading = False

    async def begin_grading(self) -> None:
        self._gateway.grading = True
        self._gateway.hang_up()

    def fault(self) -> str | None:
        problem = self._chromium.fault()
        if problem is None:
            return None
        return f"Environment {self._run_name!r}: {self._part.name!r}: {problem}."


def image_block(data: str) -> dict[str, Any]:
    """Return the content block of a base64 image."""
    return ImageContent(data=data, mime_type="image/png").model_dump(by_alias=True)


def check_size(name: str, size: tuple[int, int]) -> None:
    """Raise `UsageError` for a screen size out of range."""
    if len(size) != 2 or not all(
        isinstance(side, int) and _SMALLEST <= side <= _LARGEST for side in size
    ):
        raise UsageError(
            f"{name} must be (width, height), each from {_SMALLEST} to {_LARGEST} pixels, not {size!r}."
        )
