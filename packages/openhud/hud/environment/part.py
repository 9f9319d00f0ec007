"""Parts: resources opened for each run, such as an MCP server, a workspace, a browser.

A `Part` is the declaration, used by templates, hooks, tools and graders; its methods apply to the current run. Opening it
returns the `OpenPart` of a run. Parts are independent of each other, of templates and of the control channel.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
)

from hud.capabilities import Capability
from hud.environment.current_run import runs_in_scope
from hud.errors import AgentFault, EnvironmentFault, RolloutError, UsageError
from hud.foreign_code import is_failure
from hud.trace import ToolResult, ToolSpec

if TYPE_CHECKING:
    from hud.environment.run import EnvironmentRun
    from hud.environment.workspace.files.follower import Following


class RunTool(Protocol):
    """A tool of a run."""

    @property
    def spec(self) -> ToolSpec: ...

    async def call(
        self, arguments: dict[str, Any] | str, timeout: float | None = None
    ) -> ToolResult:
        """Call the tool; its failures are error results. `timeout` is in seconds."""
        ...


class OpenPart:
    """Resource of a run. Subclasses override the methods that apply to them."""

    capability: Capability | None = None
    """Capability for agents; its address is on the loopback of this machine."""

    def tools(self) -> Mapping[str, RunTool]:
        """Tools that it adds to the environment, by name; they may change during the run."""
        return {}

    async def observe(self) -> dict[str, Any]:
        """Return the changes since the last call, for the trace: `screenshot` (an image block), `files`."""
        return {}

    async def follow_files(self) -> Following | None:
        """Return a tracker of its files from now on; None without any to record."""
        return None

    async def begin_task(self) -> None:
        """Admit agents: a task starts."""

    async def begin_grading(self) -> None:
        """End every process and connection of the agent, and refuse new ones until the next task starts."""

    async def mark(self) -> None:
        """Take the present state as the one that a run starts with, for snapshots."""

    async def save(self) -> bytes:
        """Return what has changed since `mark` as an archive. Raises `NoSnapshotError`."""
        raise NotImplementedError

    async def restore(self, archive: bytes) -> None:
        """Make an archive's changes, and start what is to run. Raises `NoSnapshotError`."""
        raise NotImplementedError

    def fault(self) -> str | None:
        """Return the reason, in a sentence, why the run cannot continue, or None."""
        return None

    def broken_by_agent(self) -> bool:
        """True if `fault` ended by itself after an agent had used it."""
        return False

    def check(self) -> None:
        """Raise if the run cannot continue: `AgentFault` if its agent caused it, else `EnvironmentFault`."""
        problem = self.fault()
        if problem is None:
            return
        if self.broken_by_agent():
            raise AgentFault(f"{problem.rstrip('.')}, after the agent was at work there.")
        raise EnvironmentFault(problem)


class NoSnapshotError(Exception):
    """State that is not saved or restored, with the reason."""


Opened = TypeVar("Opened", bound=OpenPart, covariant=True)
Parameters = ParamSpec("Parameters")
Added = TypeVar("Added", bound="Part[Any]")


class Part(ABC, Generic[Opened]):
    """Declaration of a per-run resource, for `env.add`."""

    name: str
    """Unique name in an environment; its key in the manifest's `capabilities`."""
    snapshots: bool = False
    """True if what changes in it can be saved after a step, and restored in another run of the same task."""
    confines_shells = False
    """True if an agent's commands run in a sandbox of this part, not on this machine."""

    @abstractmethod
    def open(self, run: EnvironmentRun) -> AbstractAsyncContextManager[Opened]:
        """Open it for `run`, before the initialize hooks; close it after the shutdown hooks.

        Entering and leaving may happen in different tasks.
        """

    @property
    def opened(self) -> Opened:
        """The resource of the current run. Raises `UsageError` outside a run, and while it is not open."""
        for run in runs_in_scope():
            opened = run.parts.of(self)
            if opened is not None:
                return opened
        raise UsageError(
            f"{self.name!r} is up inside a run alone; use it inside tools, hooks and templates."
        )


def adds(
    constructor: Callable[[], Callable[Parameters, Added]], documentation: str
) -> Callable[Concatenate[Any, Parameters], Added]:
    """Return a method of an environment that adds a part, with the parameters of the part's constructor.

    `constructor` returns the constructor; it is called with the method, so that an environment without the part does
    not load the libraries that it needs.
    """

    def add_part(
        environment: Any, /, *positional: Parameters.args, **named: Parameters.kwargs
    ) -> Added:
        try:
            construct = constructor()
        except ModuleNotFoundError as error:
            raise UsageError(
                f"This part of an environment needs the package {error.name!r}: pip install 'openhud[environments]'."
            ) from error
        added: Added = environment.add(construct(*positional, **named))
        return added

    add_part.__doc__ = documentation
    return add_part


class OpenParts:
    """The parts of one run."""

    def __init__(self) -> None:
        self._opened: dict[int, tuple[Part[Any], OpenPart]] = {}
        self._stack = AsyncExitStack()

    def __bool__(self) -> bool:
        return bool(self._opened)

    async def open(self, parts: Iterable[Part[Any]], run: EnvironmentRun) -> None:
        """Open all, in order. Raises `EnvironmentFault`; those already open remain so until `close`."""
        for part in parts:
            try:
                self._opened[id(part)] = part, await self._stack.enter_async_context(part.open(run))
            except RolloutError:
                raise
            except BaseException as error:
                if not is_failure(error):
                    raise
                raise EnvironmentFault(
                    f"Environment {run.name!r}: {part.name!r} could not be brought up: "
                    f"{type(error).__name__}: {error}."
                ) from error

    def of(self, part: Part[Opened]) -> Opened | None:
        entry = self._opened.get(id(part))
        return None if entry is None else cast("Opened", entry[1])

    def capabilities(self) -> list[Capability]:
        capabilities = (opened.capability for _, opened in self._opened.values())
        return [capability for capability in capabilities if capability is not None]

    def tools(self) -> dict[str, RunTool]:
        """Return the tools of all parts; for equal names, the first part's."""
        tools: dict[str, RunTool] = {}
        for _, opened in self._opened.values():
            for name, tool in opened.tools().items():
                tools.setdefault(name, tool)
        return tools

    async def observe(self) -> dict[str, Any]:
        """Return the changes in all parts; a key that two parts use is suffixed with the later part's name."""
        seen: dict[str, Any] = {}
        for part, opened in self._opened.values():
            for key, value in (await opened.observe()).items():
                seen[f"{key}:{part.name}" if key in seen else key] = value
        return seen

    async def follow_files(self) -> dict[str, Following]:
        """Return the file trackers of the parts, by the part's name."""
        followers = {
            part.name: await opened.follow_files() for part, opened in self._opened.values()
        }
        return {name: follower for name, follower in followers.items() if follower is not None}

    async def begin_task(self) -> None:
        """Admit agents to every part."""
        for _, opened in self._opened.values():
            await opened.begin_task()

    async def mark(self) -> None:
        """Take the present state of the parts with snapshots as their start."""
        for part, opened in self._opened.values():
            if part.snapshots:
                await opened.mark()

    async def save(self) -> dict[str, bytes]:
        """Return the archive of each part, by name. Raises `NoSnapshotError`."""
        return {part.name: await opened.save() for part, opened in self._opened.values()}

    async def restore(self, archives: Mapping[str, bytes]) -> None:
        """Restore the archives of all parts. Raises `NoSnapshotError`, also for those of other parts."""
        opened_parts = {part.name: opened for part, opened in self._opened.values()}
        if opened_parts.keys() != archives.keys():
            raise NoSnapshotError("it is of an environment with other parts")
        for name, archive in archives.items():
            await opened_parts[name].restore(archive)

    async def begin_grading(self) -> None:
        """End the agent's remaining processes in all parts, so that their state is fixed during grading."""
        for _, opened in self._opened.values():
            await opened.begin_grading()

    def check(self) -> None:
        """Raise `EnvironmentFault`, or `AgentFault`, if a part reports that the run cannot continue."""
        for _, opened in self._opened.values():
            opened.check()

    async def close(self) -> None:
        """Close all, in reverse order."""
        if not self._opened:
            return
        try:
            await self._stack.aclose()
        finally:
            self._opened.clear()
