"""Hand-written agents for triage: the oracle, and the apprentice that the demo's policy first imitates.

An investigation is a generator: it yields tool calls, is sent what the tools say, and returns the answer. It
sees what any agent sees (the page and the tools' words) and nothing of the world's truth.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Generator

from hud.agents import ScriptedAgent
from hud.trace import ChatMessage, Completion, ToolCall, ToolSpec, Trace

Investigation = Generator[tuple[str, str | dict[str, str]], str, str]
"""Yields a tool with a service's name, or with all of its arguments; is sent the tool's text, returns the answer."""

CAUSES = ("certificate", "deploy", "flag", "index", "leak", "outage", "pool")
PROBES = {
    "ConnectionError": "get_certificate",
    "KeyError": "list_deploys",
    "TimeoutError": "query_metrics",
    "TypeError": "list_deploys",
}
"""The one tool that tells apart the causes that an error class leaves open."""
POINTLESS = ("list_dependencies", "list_deploys", "list_flags", "query_metrics")
"""What the apprentice asks of the service that only shows the symptom."""

HABITS = {"sound": 0.2, "wander": 0.15, "guess": 0.2, "hasty": 0.45}
"""How often the apprentice works in which way."""
SLIPS = 0.15
"""How often it draws a wrong conclusion from the right evidence."""


def answer(service: str, error: str, cause: str) -> str:
    """Return an answer in the form that the environment asks for."""
    return f"service={service}; class={error}; cause={cause}"


def open_issue(page: str) -> Generator[tuple[str, str], str, tuple[str, str]]:
    """Look up the issue that the page is about; returns its service and class."""
    pattern = re.search(r"[a-z]+-\*", page)
    issue = yield "get_issues", pattern.group() if pattern else "*"
    service, _, error = issue.partition("\n")[0].partition(": ")
    return service, error


def follow(service: str, links: int = 9) -> Generator[tuple[str, str], str, tuple[str, str]]:
    """Follow failing calls from `service`; returns the last service reached and its error class."""
    error = "UpstreamError"
    for _ in range(links):
        trace = yield "get_stack_trace", service
        error, _, upstream = re.fullmatch(r"(\w+) in (\w+)\(([\w-]*)\)", trace).groups()
        if not upstream:
            return service, error
        service = upstream
    return service, error


def conclude(error: str, evidence: str) -> str:
    """Return the cause that the probe's evidence proves."""
    if error == "ConnectionError":
        return "certificate" if "expired" in evidence else "outage"
    if error == "TimeoutError":
        trends = dict(part.split(" ") for part in evidence.split(", "))
        signs = {"pool": "pool", "memory": "leak", "scans": "index"}
        return next((cause for sign, cause in signs.items() if trends[sign] != "flat"), CAUSES[0])
    return "deploy" if "minutes" in evidence else "flag"


def investigate(page: str) -> Investigation:
    """The oracle: the shortest investigation that proves its answer."""
    symptom, _ = yield from open_issue(page)
    service, error = yield from follow(symptom)
    evidence = yield PROBES[error], service
    return answer(service, error, conclude(error, evidence))


def muddle(page: str, rng: random.Random) -> Investigation:
    """The apprentice: knows the tools and the form of an answer, but stops early, guesses, wanders and slips."""
    habit = rng.choices(list(HABITS), list(HABITS.values()))[0]
    symptom, error = yield from open_issue(page)
    if habit == "hasty":
        return answer(symptom, error, rng.choice(CAUSES))
    if habit == "wander":
        for _ in range(rng.randint(1, 2)):
            yield rng.choice(POINTLESS), symptom
    if habit == "guess":
        # One call along the chain and no further, without a look at what it found there.
        service, _ = yield from follow(symptom, links=1)
        return answer(service, rng.choice(list(PROBES)), rng.choice(CAUSES))
    service, error = yield from follow(symptom)
    evidence = yield PROBES[error], service
    slip = rng.random() < SLIPS
    return answer(service, error, rng.choice(CAUSES) if slip else conclude(error, evidence))


class Script:
    """Plays investigations turn by turn, in the shape that `ScriptedAgent` wants."""

    def __init__(self, begin: Callable[[str], Investigation]) -> None:
        self.begin = begin
        self.running: dict[int, Investigation] = {}
        self.calls = itertools.count(1)

    def __call__(
        self, messages: list[ChatMessage], tools: list[ToolSpec], trace: Trace
    ) -> Completion:
        del tools
        last = messages[-1]
        try:
            if last["role"] == "tool":
                tool, about = self.running[id(trace)].send(last["content"])
            else:
                self.running[id(trace)] = self.begin(last["content"])
                tool, about = next(self.running[id(trace)])
        except StopIteration as end:
            self.running.pop(id(trace))
            return Completion(content=end.value)
        arguments = about if isinstance(about, dict) else {"service": about}
        call = ToolCall(id=f"call_{next(self.calls)}", name=tool, arguments=arguments)
        return Completion(tool_calls=[call], finish_reason="tool_calls")


agent = ScriptedAgent(Script(investigate), name="oracle")
"""Solves every incident: `hud eval examples/triage/tasks.py examples/triage/scripted.py`."""


def apprentice(seed: int = 0) -> ScriptedAgent:
    """Return the imperfect agent whose runs the demo's policy first learns from; each run has its own luck."""
    luck = random.Random(seed)
    return ScriptedAgent(
        Script(lambda page: muddle(page, random.Random(luck.random()))), name="apprentice"
    )
