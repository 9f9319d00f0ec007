"""Environment `tau2`: an agent of customer service, its tools, and the customer where there is one to talk to.

In `airline` and `retail` the agent talks by the tool `say`, whose result is the customer's answer. In `telecom` it has a
ticket, and the customer's phone in hand, and talks to nobody: the package's solo mode.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from hud.environment import Environment
from hud.environment.part import OpenPart, Part, RunTool
from hud.environment.run import EnvironmentRun
from hud.environment.tools.results import tool_result
from hud.environment.tools.tool import parse_arguments
from hud.errors import HudError, UsageError
from hud.graders import EvaluationResult
from hud.trace import Message, ToolResult, ToolSpec
from hud_benchmarks.tau2.benchmarks import Domain
from hud_benchmarks.tau2.customer import Customer
from hud_benchmarks.tau2.data import text
from hud_benchmarks.tau2.service import DESKS, Service

SAY = ToolSpec(
    name="say",
    description="Say something to the customer. Returns the customer's answer.",
    parameters={
        "type": "object",
        "properties": {"message": {"type": "string", "description": "What to tell the customer."}},
        "required": ["message"],
        "additionalProperties": False,
    },
)
TALK = (
    "You are an agent of customer service. Help the customer by the policy below. Talk with the tool `say` and act with the "
    "other tools, one call at a time. Greet the customer first. End your turn without a call once the conversation is over."
)
SOLO = (
    "You are an agent of customer service. Solve the ticket by the policy below, with the tools alone: there is nobody to "
    "talk to, and the customer's phone is in your hands. End your turn without a call once the ticket is solved."
)


class DeskTool:
    """A tool of a run's desks."""

    def __init__(self, name: str, service: Service) -> None:
        self.spec = service.tools[name].spec
        self.service = service

    async def call(
        self, arguments: dict[str, Any] | str, timeout: float | None = None
    ) -> ToolResult:
        # In the event loop: calls that arrive together act in the order in which they were made.
        del timeout
        name = self.spec.name
        try:
            return tool_result(self.service.call(name, parse_arguments(arguments, name)))
        except UsageError as error:
            return ToolResult.of_text(f"{name}: {error}", is_error=True)


class SayTool:
    """The way to the customer."""

    spec = SAY

    def __init__(self, desk: OpenDesk) -> None:
        self.desk = desk

    async def call(
        self, arguments: dict[str, Any] | str, timeout: float | None = None
    ) -> ToolResult:
        del timeout
        try:
            message = str(parse_arguments(arguments, SAY.name).get("message") or "")
        except UsageError as error:
            return ToolResult.of_text(str(error), is_error=True)
        try:
            return ToolResult.of_text(await self.desk.say(message))
        except HudError as error:
            self.desk.broken = str(error)
            return ToolResult.of_text(str(error), is_error=True)


class OpenDesk(OpenPart):
    """The desk of one run."""

    def __init__(self) -> None:
        self.service: Service | None = None
        self.customer: Customer | None = None
        self.broken: str | None = None
        """Reason for which the customer cannot answer."""

    def begin(self, domain: Domain, identifier: str) -> Service:
        """Take up a task, in place of the one before."""
        self.service = Service(domain, identifier)
        self.customer = Customer(self.service.task) if domain in DESKS else None
        return self.service

    async def say(self, message: str) -> str:
        """Tell the customer something; returns the answer."""
        assert self.service is not None
        assert self.customer is not None
        self.service.messages.append(message)
        return await self.customer.answer(message)

    def tools(self) -> Mapping[str, RunTool]:
        if self.service is None:
            return {}
        run_tools: dict[str, RunTool] = {
            name: DeskTool(name, self.service) for name in self.service.tools
        }
        return run_tools if self.customer is None else {SAY.name: SayTool(self), **run_tools}

    def fault(self) -> str | None:
        return self.broken


class Desk(Part[OpenDesk]):
    """The world of a task, afresh for each run."""

    name = "desk"

    @asynccontextmanager
    async def open(self, run: EnvironmentRun) -> AsyncIterator[OpenDesk]:
        del run
        opened = OpenDesk()
        try:
            yield opened
        finally:
            if opened.customer is not None:
                await opened.customer.aclose()


env = Environment("tau2")
desk = env.add(Desk())


@env.template()
async def case(domain: Domain, identifier: str) -> AsyncGenerator[Any, Any]:
    """Serve a customer."""
    service = desk.opened.begin(domain, identifier)
    answer = yield _prompt(service)
    service.messages.append(str(answer or ""))
    problem = service.problem()
    yield EvaluationResult(reward=float(problem is None), content=problem)


def _prompt(service: Service) -> list[Message]:
    folder = f"domains/{service.domain}"
    if service.domain in DESKS:
        policy, task = text(f"{folder}/policy.txt"), "A customer is on the line."
        return _messages(TALK, policy, task)
    parts = (text(f"{folder}/{name}_solo.txt") for name in ("main_policy", "tech_support_workflow"))
    return _messages(SOLO, "\n\n".join(parts), f"Ticket: {service.task['ticket']}")


def _messages(instructions: str, policy: str, task: str) -> list[Message]:
    return [
        Message(role="system", content=f"{instructions}\n\n<policy>\n{policy}\n</policy>"),
        Message(role="user", content=task),
    ]
