"""`Environment`: declaration of tools, templates, capabilities and hooks.

Nothing is executed until a run is opened, and every run has its own state.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, Unpack, overload

from hud.capabilities import Capability
from hud.environment import screens
from hud.environment import workspace as workspaces
from hud.environment.current_run import State, run_of
from hud.environment.mcp.connected_server import ConnectedServer, Lifetime, connected_servers
from hud.environment.part import Opened, Part, adds
from hud.environment.run import EnvironmentRun
from hud.environment.templates.agent_tool import AgentTool
from hud.environment.templates.template import Template
from hud.environment.tools.tool import Tool
from hud.errors import UsageError
from hud.trace import ToolSpec

Function = TypeVar("Function", bound=Callable[..., Any])
Episode = Callable[..., AsyncGenerator[Any, Any]]
Added = TypeVar("Added", bound="Tool | AgentTool | Template | Capability | Part[Any]")


class Environment:
    """A named set of tools, templates, capabilities and parts.

    `reward_range` bounds the rewards of its templates; declare `(-1.0, 1.0)` to allow penalties below zero. What tools
    left running ends before the grade where the runtime gives each run a process; with `keeps_running` it goes on, for
    graders of a server that a tool started.
    """

    def __init__(
        self,
        name: str = "environment",
        *,
        version: str = "0.0.1",
        capabilities: list[Capability | Part[Any]] | None = None,
        reward_range: tuple[float, float] = (0.0, 1.0),
        keeps_running: bool = False,
    ) -> None:
        low, high = reward_range
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise UsageError(
                f"Environment {name!r}: reward_range must be (low, high), not {reward_range!r}."
            )
        self.name = name
        self.version = version
        self.reward_range = (float(low), float(high))
        self.keeps_running = keeps_running
        self.tools: dict[str, Tool | AgentTool] = {}
        self.templates: dict[str, Template] = {}
        self.tool_specs: list[ToolSpec] = []
        self.parts: dict[str, Part[Any]] = {}
        """Parts by name; each run opens its own."""
        self.capabilities: list[Capability] = []
        """Capabilities of servers outside of runs, shared by all runs."""
        self.initialize_hooks: list[Callable[[], Any]] = []
        self.shutdown_hooks: list[Callable[[], Any]] = []
        self.observe_hook: Callable[[], Any] | None = None
        caller = inspect.currentframe()
        caller = caller.f_back if caller is not None else None
        for capability in capabilities or []:
            self.add(capability)
        self.source_file: str | None = caller.f_code.co_filename if caller is not None else None
        """The file that created the environment; other processes load it from there."""

    def __repr__(self) -> str:
        return (
            f"Environment({self.name!r}, {len(self.tools)} tools, {len(self.templates)} templates)"
        )

    @property
    def tasks(self) -> dict[str, Template]:
        """The templates by id."""
        return self.templates

    @property
    def state(self) -> State:
        """The state of the current run, for tools, hooks and templates. Raises `UsageError` outside a run."""
        run = run_of(self)
        if run is None:
            raise UsageError(
                f"Environment {self.name!r} has no state outside a run; use it inside tools, hooks and templates."
            )
        return run.state

    def reward_turn(self, reward: float) -> None:
        """Add a reward to the agent's present turn, for tools and observe hooks; training credits it to that turn.

        Raises `UsageError` outside a run that is being played, and for a number that is not finite.
        """
        run = run_of(self)
        if run is None or run.episode is None:
            raise UsageError(
                f"Environment {self.name!r} has no turn to reward here: call reward_turn in a tool or an observe hook; a grade "
                "has turn_rewards."
            )
        if not isinstance(reward, int | float) or not math.isfinite(reward):
            raise UsageError(f"reward_turn takes a finite number, not {reward!r}.")
        run.turn_reward = (run.turn_reward or 0.0) + reward

    def add(self, addition: Added) -> Added:
        """Add a tool, a template, a capability or a part, and return it.

        A `Part` is opened and closed by every run. A `Capability` is shared by all runs or, if added within a run, belongs
        to that run alone. Raises `UsageError` for a name in use.
        """
        if isinstance(addition, Capability):
            run = run_of(self)
            offered = self.capabilities if run is None else run.capabilities
            if any(addition.name == other.name for other in offered):
                raise UsageError(
                    f"Environment {self.name!r} already has a capability {addition.name!r}; give another name=."
                )
            (self.capabilities if run is None else run.added).append(addition)
            return addition
        kind, registry, name = self._place(addition)
        if name in registry:
            raise UsageError(f"Environment {self.name!r} already has a {kind} {name!r}.")
        registry[name] = addition
        self.tool_specs = [tool.spec for tool in self.tools.values()]
        return addition

    def _place(self, addition: Any) -> tuple[str, dict[str, Any], str]:
        """Return the kind of an addition, the others of that kind, and its name among them."""
        if isinstance(addition, Part):
            return "part", self.parts, addition.name
        if isinstance(addition, Template):
            return "template", self.templates, addition.id
        if isinstance(addition, Tool | AgentTool):
            return "tool", self.tools, addition.name
        raise UsageError(
            f"env.add takes a tool, a template, a capability or a part, not a {type(addition).__name__}."
        )

    def add_tool(self, tool: Added) -> Added:
        """Add a ready tool, such as an `AgentTool`, and return it."""
        return self.add(tool)

    def add_capability(self, capability: Capability | Part[Any]) -> None:
        """Add a capability, or a part that has one."""
        self.add(capability)

    def opened(self, part: Part[Opened]) -> Opened:
        """Return the current run's `OpenPart` of `part`."""
        return part.opened

    workspace = adds(
        lambda: workspaces.Workspace,
        "Add a shell and a folder of its own for every run, in a sandbox; the arguments are those of `Workspace`.",
    )
    browser = adds(
        lambda: screens.Browser,
        "Add a Chromium with a fresh profile for every run; the arguments are those of `Browser`.",
    )
    desktop = adds(
        lambda: screens.Desktop,
        "Add a display with a window manager for every run; the arguments are those of `Desktop`.",
    )
    connect_mcp = adds(
        lambda: ConnectedServer,
        "Add the tools of an MCP server for every run; the arguments are those of `ConnectedServer`.",
    )

    def connect_mcp_config(
        self,
        config: Mapping[str, Any] | str | Path,
        *,
        prefix: bool = False,
        include: Mapping[str, Sequence[str]] | None = None,
        exclude: Mapping[str, Sequence[str]] | None = None,
        **lifetime: Unpack[Lifetime],
    ) -> dict[str, ConnectedServer]:
        """Add the servers of an `mcpServers` JSON (or of the file at that path), and return them by name.

        With `prefix` the tools of each are named `SERVER_TOOL`; `include` and `exclude` are by server name. All other
        arguments are those of `connect_mcp`.
        """
        servers = connected_servers(config, prefix, include or {}, exclude or {}, lifetime)
        return {server.name: self.add(server) for server in servers}

    @overload
    def tool(self, function: Function, /) -> Function: ...
    @overload
    def tool(
        self,
        /,
        *,
        name: str | None = None,
        description: str | None = None,
        timeout: float | None = None,
    ) -> Callable[[Function], Function]: ...
    def tool(
        self,
        function: Any = None,
        /,
        *,
        name: str | None = None,
        description: str | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Make a sync or async function a tool (`@env.tool`, or `@env.tool(...)`).

        `timeout` is in seconds. The function remains callable.
        """

        def register(function: Function) -> Function:
            self.add(Tool(function, name=name, description=description, timeout=timeout))
            return function

        return register if function is None else register(function)

    @overload
    def template(self, function: Episode, /) -> Template: ...
    @overload
    def template(
        self,
        /,
        *,
        id: str | None = None,
        description: str = "",
        input: Any = None,
        returns: Any = None,
    ) -> Callable[[Episode], Template]: ...
    def template(
        self,
        function: Any = None,
        /,
        *,
        id: str | None = None,
        description: str = "",
        input: Any = None,
        returns: Any = None,
    ) -> Any:
        """Make an async generator with two yields a template: the prompt, then the reward.

        `returns` is the type of the answer; the template then receives an `Answer[T]`. `input` is the type of the prompt's
        contents, for the list of tasks.
        """

        def register(function: Episode) -> Template:
            return self.add(
                Template(
                    self, function, id=id, description=description, input=input, returns=returns
                )
            )

        return register if function is None else register(function)

    def scenario(self, name: str | None = None, **options: Any) -> Callable[[Episode], Template]:
        """The same as `template`, with the id first: `@env.scenario("checkout")`."""
        register: Callable[[Episode], Template] = self.template(id=name, **options)
        return register

    def initialize(self, function: Function) -> Function:
        """Call `function` (sync or async, no arguments) at the start of every run."""
        self.initialize_hooks.append(function)
        return function

    def shutdown(self, function: Function) -> Function:
        """Call `function` (sync or async, no arguments) at the end of every run."""
        self.shutdown_hooks.append(function)
        return function

    def observe(self, function: Function) -> Function:
        """Record the environment's state in the trace: the result of `function` (sync or async, no arguments), as JSON.

        It is called after the task's setup half and after each tool call, of the environment's tools and over
        capabilities. An exception fails the run with `EnvironmentFault`.
        """
        self.observe_hook = function
        return function

    def run(self) -> EnvironmentRun:
        """Return a new run of this environment in this process: `async with env.run() as run`."""
        return EnvironmentRun(self)
