"""`Environment`: what an agent may touch, and the tasks that can be done in it.

An environment is a declaration: tools, templates and hooks. Nothing runs until a run is opened, and every
run has its own state.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeVar, overload

from hud.capabilities import Capability
from hud.environment.current_run import State, current_run, run_of
from hud.environment.mcp.declaring import ConnectsServers
from hud.environment.part import OpenPart, Part
from hud.environment.run import EnvironmentRun
from hud.environment.screens.declaring import OffersScreens
from hud.environment.templates.template import Template
from hud.environment.tools.agent_tool import AgentTool
from hud.environment.tools.tool import Tool
from hud.environment.workspace.declaring import OffersWorkspaces
from hud.errors import UsageError
from hud.trace import ToolSpec

Function = TypeVar("Function", bound=Callable[..., Any])
Episode = Callable[..., AsyncGenerator[Any, Any]]
Added = TypeVar("Added", bound="AgentTool | Tool")


class Environment(ConnectsServers, OffersScreens, OffersWorkspaces):
    """A named world with tools and templates.

    `reward_range` bounds the rewards of its templates; declare `(-1.0, 1.0)` to allow penalties below zero.
    """

    def __init__(
        self,
        name: str = "environment",
        *,
        version: str = "0.0.1",
        capabilities: list[Capability | Part] | None = None,
        reward_range: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        low, high = reward_range
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise UsageError(
                f"Environment {name!r}: reward_range must be (low, high), not {reward_range!r}."
            )
        self.name = name
        self.version = version
        self.reward_range = (float(low), float(high))
        self.tools: dict[str, Tool | AgentTool] = {}
        self.templates: dict[str, Template] = {}
        self.tool_specs: list[ToolSpec] = []
        self.parts: list[Part] = []
        """What every run has afresh."""
        self.capabilities: list[Capability] = []
        """What is offered to agents and is there without us: the same for every run."""
        self.initialize_hooks: list[Callable[[], Any]] = []
        self.shutdown_hooks: list[Callable[[], Any]] = []
        self.observe_hook: Callable[[], Any] | None = None
        caller = inspect.currentframe()
        caller = caller.f_back if caller is not None else None
        for capability in capabilities or []:
            self.add_capability(capability)
        self.source_file: str | None = caller.f_code.co_filename if caller is not None else None
        """The file in which the environment was made; a runtime of another process loads it from there."""

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
        """The state of the run that the calling tool, hook or template works for."""
        return current_run(self, self.name, "state").state

    def add_part(self, part: Part) -> None:
        """Have every run bring `part` up."""
        if any(part.name == other.name for other in self.parts):
            raise UsageError(f"Environment {self.name!r} already has a part {part.name!r}.")
        self.parts.append(part)

    def add_capability(self, capability: Capability | Part) -> None:
        """Offer agents something to connect to: what is there already, or what every run is to bring up.

        Called in a hook, a template or a tool, it offers it for that run alone.
        """
        if isinstance(capability, Part):
            self.add_part(capability)
            return
        run = run_of(self)
        known = self.capabilities if run is None else run.capabilities
        if any(capability.name == other.name for other in known):
            raise UsageError(
                f"Environment {self.name!r} already has a capability {capability.name!r}; give another name=."
            )
        (self.capabilities if run is None else run.added).append(capability)

    def opened(self, part: Part) -> OpenPart:
        """Return what the run that the calling tool, hook or template works for has of `part`."""
        opened = current_run(self, self.name, part.name).parts.of(part)
        if opened is None:
            raise UsageError(f"Environment {self.name!r}: {part.name!r} is not up yet, or no more.")
        return opened

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

        `timeout` is in seconds. The function stays callable as it was.
        """

        def register(function: Function) -> Function:
            self.add_tool(Tool(function, name=name, description=description, timeout=timeout))
            return function

        return register if function is None else register(function)

    def add_tool(self, tool: Added) -> Added:
        """Add a ready tool, such as an `AgentTool`, and return it."""
        if tool.name in self.tools:
            raise UsageError(f"Environment {self.name!r} already has a tool {tool.name!r}.")
        self.tools[tool.name] = tool
        self.tool_specs = [tool.spec for tool in self.tools.values()]
        return tool

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

        `returns` is the type of the answer; the template then receives an `Answer[T]`. `input` is a type that
        describes what the prompt holds, for those who list the tasks.
        """

        def register(function: Episode) -> Template:
            template = Template(
                self, function, id=id, description=description, input=input, returns=returns
            )
            if template.id in self.templates:
                raise UsageError(
                    f"Environment {self.name!r} already has a template {template.id!r}."
                )
            self.templates[template.id] = template
            return template

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
        """Record the environment's state in the trace: what `function` (sync or async, no arguments) returns, as JSON.

        It is called once the task's setup half is over, and after each tool call, of the environment's tools and over
        capabilities alike. One that raises fails the run as the environment's fault.
        """
        self.observe_hook = function
        return function

    def run(self) -> EnvironmentRun:
        """Return a fresh run of this environment in this process: `async with env.run() as run`."""
        return EnvironmentRun(self)
